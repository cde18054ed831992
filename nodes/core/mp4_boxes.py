"""ISO base media file format (ISO/IEC 14496-12), as far as cutting and naming a stream needs: boxes and codec strings.

A box is a 32-bit big-endian size that counts its own header, four letters, and a body; size 1 says that 64 bits of
size follow the letters.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_BOX = 1 << 30

# Bytes of an entry of stsd before the boxes within it (clauses 12.1.3 and 12.2.3).
_ENTRY_FIELDS = {b"vide": 78, b"soun": 28}


class BoxReader:
    """Cuts a byte stream into whole top-level boxes, whatever the pieces it comes in."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (type, the whole box with its header) for each box that `data` completes."""
        self._held += data
        while (size := _box_size(self._held)) is not None and len(self._held) >= size:
            box = bytes(self._held[:size])
            del self._held[:size]
            yield box[4:8], box

    @property
    def rest(self) -> int:
        """Bytes of a box that is not complete."""
        return len(self._held)


def _box_size(data: bytes | bytearray, at: int = 0) -> int | None:
    """Return the size of the box at `at`, or None if its header is not all there. ValueError if it cannot be one."""
    if len(data) - at < 8:
        return None
    size = int.from_bytes(data[at : at + 4], "big")
    if size == 1:
        if len(data) - at < 16:
            return None
        size = int.from_bytes(data[at + 8 : at + 16], "big")
    if not 8 <= size <= MAX_BOX:
        raise ValueError(f"a box of {size} bytes is outside 8..{MAX_BOX}; this is no ISO media stream")
    return size


def children(data: bytes, skip: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield (type, body) of the boxes in `data` from byte `skip` on. ValueError if one is cut off."""
    at = skip
    while at < len(data):
        size = _box_size(data, at)
        if size is None or at + size > len(data):
            raise ValueError(f"a box at byte {at} of {len(data)} is cut off")
        header = 16 if int.from_bytes(data[at : at + 4], "big") == 1 else 8
        yield data[at + 4 : at + 8], data[at + header : at + size]
        at += size


def child(data: bytes, *path: bytes) -> bytes:
    """Return the body of the first box at `path` below `data`, as (b"moov", b"trak"). ValueError if there is none."""
    for name in path:
        body = next((body for kind, body in children(data) if kind == name), None)
        if body is None:
            raise ValueError(f"there is no box {name.decode()}")
        data = body
    return data


def codec_strings(init: bytes) -> dict[int, str]:
    """Return track id -> codec parameter (RFC 6381) for every track of an initialisation segment, in file order.

    As a browser's MediaSource.isTypeSupported takes it: "avc1.42C01E", "hvc1.1.6.L63.90", "av01.0.00M.08", "mp4a.40.2".
    """
    found = {}
    for kind, trak in children(child(init, b"moov")):
        if kind != b"trak":
            continue
        track_id = int.from_bytes(_full(child(trak, b"tkhd"), 8, 16), "big")
        handler = child(trak, b"mdia", b"hdlr")[8:12]
        entries = child(trak, b"mdia", b"minf", b"stbl", b"stsd")
        entry, body = next(children(entries, 8))
        found[track_id] = _codec(entry, body[_ENTRY_FIELDS.get(handler, 0) :])
    return found


def _full(body: bytes, version_0: int, version_1: int) -> bytes:
    """Return the 4 bytes that stand at `version_0` of the fields of a full box of version 0, else at `version_1`."""
    at = 4 + (version_1 if body[0] else version_0)
    return body[at : at + 4]


def _codec(entry: bytes, boxes: bytes) -> str:
    name = entry.decode("ascii")
    if entry in (b"avc1", b"avc3"):
        return f"{name}.{child(boxes, b'avcC')[1:4].hex().upper()}"
    if entry in (b"hvc1", b"hev1"):
        return f"{name}.{_hevc(child(boxes, b'hvcC'))}"
    if entry == b"av01":
        return f"{name}.{_av1(child(boxes, b'av1C'))}"
    if entry == b"mp4a":
        return f"{name}.{_mp4_audio(child(boxes, b'esds')[4:])}"
    return name


def _hevc(record: bytes) -> str:
    """ISO/IEC 14496-15 annex E.3: profile, compatibility flags from the last bit, tier and level, constraints."""
    space = ("", "A", "B", "C")[record[1] >> 6]
    tier = "H" if record[1] >> 5 & 1 else "L"
    flags = int(f"{int.from_bytes(record[2:6], 'big'):032b}"[::-1], 2)
    constraints = record[6:12].rstrip(b"\0")
    return ".".join(
        [f"{space}{record[1] & 31}", f"{flags:X}", f"{tier}{record[12]}", *(f"{b:X}" for b in constraints)]
    )


def _av1(record: bytes) -> str:
    """AV1 Codec ISO Media File Format Binding, section 5: profile, level with tier, bit depth."""
    profile, level, flags = record[1] >> 5, record[1] & 31, record[2]
    depth = (12 if flags >> 5 & 1 else 10) if flags >> 6 & 1 else 8
    return f"{profile}.{level:02}{'H' if flags >> 7 else 'M'}.{depth:02}"


def _mp4_audio(descriptors: bytes) -> str:
    """ISO/IEC 14496-1: object type of the decoder configuration, then for MPEG-4 audio its audio object type."""
    kind, es = _descriptor(descriptors)
    if kind != 3:
        raise ValueError(f"esds begins with descriptor {kind}, not 3")
    flags, at = es[2], 3
    at += 2 if flags & 0x80 else 0
    at += 1 + es[at] if flags & 0x40 else 0
    at += 2 if flags & 0x20 else 0
    _, config = _descriptor(es[at:])
    if config[0] != 0x40:
        return f"{config[0]:X}"
    _, specific = _descriptor(config[13:])
    return f"40.{specific[0] >> 3}"


def _descriptor(data: bytes) -> tuple[int, bytes]:
    """Return tag and body; the size comes in groups of 7 bits, the top bit says that another follows."""
    size, at = 0, 1
    while True:
        size = size << 7 | data[at] & 0x7F
        at += 1
        if not data[at - 1] & 0x80:
            return data[0], data[at : at + size]


def sample_counts(moof: bytes) -> dict[int, int]:
    """Return track id -> samples in a movie fragment (a whole moof box, with its header)."""
    counts: dict[int, int] = {}
    for kind, traf in children(moof, 8):
        if kind == b"traf":
            track_id = int.from_bytes(child(traf, b"tfhd")[4:8], "big")
            runs = (body for name, body in children(traf) if name == b"trun")
            counts[track_id] = counts.get(track_id, 0) + sum(int.from_bytes(r[4:8], "big") for r in runs)
    return counts
