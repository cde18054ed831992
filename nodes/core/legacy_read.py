"""Reading the avatar folders other MuseTalk software wrote, in three forms, without running anything in them.

| form | files |
|---|---|
| seven files | frames.pt (N,3,H,W), latents.pt, masks.pt, geometry.pkl, coords.pkl, mask_coords.pkl, avator_info.json |
| four files | latents.pt, coords.pkl, masks.pkl, meta.json: no pictures |
| realtime | upstream's: full_imgs/%08d.png, mask/%08d.png, latents.pt, coords.pkl, mask_coords.pkl, avator_info.json |

`.pt` files go through torch's weights-only unpickler, `.pkl` through core.unpickle. Source: spec/system.md 1,
spec/musetalk.md 8.
"""

from __future__ import annotations

import json
import pickle
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .checkpoint import refuse_by_name
from .frames import FrameStream, RunContext
from .image_read import image_facts, read_image
from .packet import PacketError
from .unpickle import UnsafePickle, restricted_load

FORMS = {
    "seven files": (
        "frames.pt", "latents.pt", "masks.pt", "geometry.pkl", "coords.pkl", "mask_coords.pkl", "avator_info.json",
    ),
    "realtime": ("full_imgs", "mask", "latents.pt", "coords.pkl", "mask_coords.pkl", "avator_info.json"),
    "four files": ("latents.pt", "coords.pkl", "masks.pkl", "meta.json"),
}  # fmt: skip
_INFO_FILE = {"seven files": "avator_info.json", "realtime": "avator_info.json", "four files": "meta.json"}
_SOURCE_FIELDS = ("source", "video_path", "source_path", "image", "video", "path")
_NUMBERED = re.compile(r"[0-9]{8}\.png", re.IGNORECASE)
_LARGEST = 1_000_000
"""Pixels: a coordinate beyond this is no coordinate."""
_KIND_DEPTH = 3
_REFUSED = re.compile(r"(?:GLOBAL|[Uu]nsupported (?:class|global)[: ]*)\s*([\w.]+)")


class LegacyFrames(ABC):
    """The pictures of a legacy avatar, read when they are needed. n: how many; size: (width, height)."""

    n: int
    size: tuple[int, int]

    @abstractmethod
    def read(self, ctx: RunContext, count: int) -> Iterator[np.ndarray]:
        """Yield the first `count` pictures, uint8 (H,W,3) RGB."""

    @abstractmethod
    def same(self, i: int, j: int) -> bool:
        """Return whether pictures i and j are equal; True where that cannot be told."""


@dataclass(frozen=True, eq=False)
class LegacyAvatar:
    """What a legacy folder holds, N entries of each.

    latents: fp16 (N,8,h,w). boxes: int (N,4). crops: int (N,4), what each mask covers, or None (four files).
    masks: uint8 (rows, columns) each. facts: of its JSON file. frames: None for four files.
    """

    form: str
    latents: torch.Tensor
    boxes: np.ndarray
    crops: np.ndarray | None
    masks: Sequence[np.ndarray]
    facts: dict[str, Any]
    frames: LegacyFrames | None
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.latents)


def legacy_form(folder: Path, forms: Mapping[str, Sequence[str]] = FORMS) -> str:
    """Return the first of `forms` whose files are there: "seven files", "four files" or "realtime".

    PacketError says what is missing for the nearest form.
    """
    if not folder.is_dir():
        raise PacketError(f"no folder {folder}; give the folder of a legacy avatar")
    missing = {form: [f for f in files if not (folder / f).exists()] for form, files in forms.items()}
    for form, files in missing.items():
        if not files:
            return form
    form = min(missing, key=lambda f: len(missing[f]) / len(forms[f]))
    raise PacketError(
        f"{folder} is no legacy avatar: for the form {form!r} it lacks {', '.join(missing[form])}"
    )


def legacy_source(folder: Path) -> str | None:
    """Return what the avatar's JSON file says it was made from (a path on the maker's machine), or None."""
    facts = read_facts(folder / _INFO_FILE[legacy_form(folder)])
    named = [facts[f] for f in _SOURCE_FIELDS if isinstance(facts.get(f), str) and facts[f].strip()]
    return named[0] if named else None


def read_legacy(folder: Path) -> LegacyAvatar:
    """Read all but the pictures of a legacy avatar.

    Raises:
        UnsafePickle: a pickle asks for more than plain data; the name it asks for is in the message.
        PacketError: files missing or damaged, other shapes, 4-channel latents, counts that differ.
    """
    form = legacy_form(folder)
    facts = read_facts(folder / _INFO_FILE[form])
    boxes = _numbers(folder / "coords.pkl", 4)
    crops = None if form == "four files" else _numbers(folder / "mask_coords.pkl", 4)
    notes, counts = [], {"coords.pkl": len(boxes)}
    if crops is not None:
        counts["mask_coords.pkl"] = len(crops)
    if form == "seven files":
        geometry = _numbers(folder / "geometry.pkl", 8)
        counts["geometry.pkl"] = len(geometry)
        if len(geometry) == len(crops) and not np.array_equal(geometry[:, :4], crops):
            notes.append("mask_coords.pkl differs from geometry.pkl, which is used")
        crops = geometry[:, :4]
    latents = _latents(folder / "latents.pt")
    counts["latents.pt"] = len(latents)
    masks, frames = _masks_and_frames(folder, form, notes)
    counts["masks"] = len(masks)
    if frames is not None:
        counts["frames"] = frames.n
    if len(set(counts.values())) != 1 or not len(boxes):
        listed = ", ".join(f"{name} {n}" for name, n in counts.items())
        raise PacketError(
            f"{folder.name}: the numbers of entries differ or are 0 ({listed}), frames cannot be paired; "
            "some makers skip frames without a face: build the avatar anew"
        )
    return LegacyAvatar(form, latents, boxes, crops, masks, facts, frames, tuple(notes))


class StreamFrames(LegacyFrames):
    """Pictures of a FrameStream, for a form that has none."""

    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream
        self.n, self.size = stream.info.n_frames, (stream.info.width, stream.info.height)

    def read(self, ctx: RunContext, count: int) -> Iterator[np.ndarray]:
        chunks = self._stream.chunks(ctx, 8)
        try:
            for chunk in chunks:
                for i in range(min(chunk.num_frames, count - chunk.frame_start)):
                    yield chunk.frames[i].cpu().numpy()
                if chunk.frame_start + chunk.num_frames >= count:
                    return
        finally:
            chunks.close()

    def same(self, i: int, j: int) -> bool:
        return True


class TensorFrames(LegacyFrames):
    """Pictures of a file of torch.save: uint8 (N,3,H,W), mapped. PacketError for another kind."""

    def __init__(self, file: Path) -> None:
        frames = load_pt(file)
        if (
            not isinstance(frames, torch.Tensor)
            or frames.dtype != torch.uint8
            or frames.ndim != 4
            or frames.shape[1] != 3
        ):
            raise PacketError(f"{file.name}: must be uint8 (N,3,H,W), is {kind_of(frames)}")
        self._frames = frames
        self.n, self.size = frames.shape[0], (frames.shape[3], frames.shape[2])

    def read(self, ctx: RunContext, count: int) -> Iterator[np.ndarray]:
        for i in range(count):
            yield self._frames[i].permute(1, 2, 0).numpy()

    def same(self, i: int, j: int) -> bool:
        return torch.equal(self._frames[i], self._frames[j])


class _PngFrames(LegacyFrames):
    def __init__(self, folder: Path, notes: list[str]) -> None:
        self._paths = sorted(p for p in folder.iterdir() if _NUMBERED.fullmatch(p.name))
        # Upstream leaves the originals there, under their own names.
        others = sum(1 for p in folder.iterdir() if not p.name.startswith(".")) - len(self._paths)
        if others:
            notes.append(f"{others} files in {folder.name} are not numbered as 00000000.png and are left out")
        if not self._paths:
            raise PacketError(f"{folder} holds no picture named as 00000000.png")
        self.n, self.size = len(self._paths), image_facts(self._paths[0]).size

    def read(self, ctx: RunContext, count: int) -> Iterator[np.ndarray]:
        for path in self._paths[:count]:
            picture = read_image(path)
            if picture.shape[1::-1] != self.size:
                raise PacketError(
                    f"{path.name} is {picture.shape[1]}x{picture.shape[0]}, the first picture is "
                    f"{self.size[0]}x{self.size[1]}; all must have one size"
                )
            yield picture

    def same(self, i: int, j: int) -> bool:
        a, b = self._paths[i], self._paths[j]
        return a.read_bytes() == b.read_bytes() or np.array_equal(read_image(a), read_image(b))


def load_pt(path: Path) -> Any:
    """Return what torch.save wrote, on the CPU, mapped where the format allows; tensors and plain containers only.

    UnsafePickle names what a file asks for beside these; PacketError for a damaged one.
    """
    with path.open("rb") as f:
        is_zip = f.read(4) == b"PK\x03\x04"
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as e:
        name = _REFUSED.search(str(e))
        if name is None:
            refuse_by_name(path)
            raise PacketError(f"{path.name} is damaged or holds more than tensors; get it again") from None
        raise UnsafePickle(
            f"{path.name} asks for {name[1]}, which can run code: refused. Only tensors and lists of them are read; "
            "get the file from its author in another form"
        ) from None
    except MemoryError:
        raise
    except Exception as e:  # torch and zipfile raise what they like for damaged files
        reason = str(e).strip().split("\n")[0][:200]
        raise PacketError(
            f"{path.name} is damaged or no file of torch.save ({type(e).__name__}: {reason}); get it again"
        ) from None
    for t in _tensors_in(found):
        _check_plain(t, path.name)
    return found


def _tensors_in(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _KIND_DEPTH and isinstance(value, (list, tuple, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(entry, depth + 1)


def _check_plain(t: torch.Tensor, name: str) -> None:
    if t.layout != torch.strided or t.device.type != "cpu" or t.is_quantized:
        raise PacketError(f"{name}: a tensor is not a plain one ({t.layout}, {t.device.type}); save it dense")
    # A few bytes can be told to be a tensor of terabytes, all of one element.
    if t.numel() * t.element_size() > t.untyped_storage().nbytes():
        raise PacketError(f"{name}: a tensor claims {tuple(t.shape)}, more than the file holds; get it again")


def _masks_and_frames(
    folder: Path, form: str, notes: list[str]
) -> tuple[Sequence[np.ndarray], LegacyFrames | None]:
    if form == "realtime":
        # Pillow and OpenCV both read them as grey; our reader repeats the grey.
        paths = sorted(p for p in (folder / "mask").iterdir() if _NUMBERED.fullmatch(p.name))
        return [read_image(p)[..., 0] for p in paths], _PngFrames(folder / "full_imgs", notes)
    if form == "seven files":
        return _mask_list(load_pt(folder / "masks.pt"), "masks.pt"), TensorFrames(folder / "frames.pt")
    file = folder / "masks.pkl"
    return _mask_list(restricted_load(file.read_bytes(), file.name), file.name), None


def _mask_list(masks: Any, name: str) -> list[np.ndarray]:
    if not isinstance(masks, (list, tuple, torch.Tensor, np.ndarray)):
        raise PacketError(f"{name}: must be a list of masks, is {kind_of(masks)}")
    return [_mask_levels(m, f"{name}, mask {i}") for i, m in enumerate(masks)]


def _mask_levels(mask: Any, where: str) -> np.ndarray:
    """Return a mask as uint8 (rows, columns), from floats in 0..1 or levels in 0..255."""
    if not isinstance(mask, (torch.Tensor, np.ndarray)):
        raise PacketError(f"{where}: must be an array of (1, rows, columns), is {kind_of(mask)}")
    if isinstance(mask, torch.Tensor):
        mask = mask.float().numpy() if mask.is_floating_point() else mask.numpy()
    if mask.ndim == 3 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.ndim != 2 or mask.dtype.kind not in "fubi":
        raise PacketError(f"{where}: must be (1, rows, columns) of numbers, is {mask.shape} {mask.dtype}")
    if mask.dtype == np.uint8:
        return mask
    levels = mask.astype(np.float64)
    if mask.dtype.kind in "fb" and not (levels > 1.001).any():
        levels = levels * 255
    if not np.isfinite(levels).all() or (levels < -0.5).any() or (levels > 255.5).any():
        raise PacketError(f"{where}: values must be within 0..1 or 0..255 and finite; the file is damaged")
    return np.rint(levels).clip(0, 255).astype(np.uint8)


def _latents(file: Path) -> torch.Tensor:
    """Return fp16 (N,8,h,w) from a tensor or a list of (1,8,h,w) or (8,h,w)."""
    found = load_pt(file)
    is_list = isinstance(found, (list, tuple))
    items = found if is_list else [found]
    if not items or not all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in items):
        raise PacketError(f"{file.name}: must be a float tensor or a list of such, is {kind_of(found)}")
    items = [t[None] if is_list and t.ndim == 3 else t for t in items]
    shapes = sorted({tuple(t.shape[1:]) for t in items})
    if any(t.ndim != 4 for t in items) or len(shapes) != 1:
        raise PacketError(f"{file.name}: latents must be (N,8,h,w), these have the shapes {shapes[:3]}")
    if shapes[0][0] != 8:
        raise PacketError(
            f"{file.name}: latents have {shapes[0][0]} channels, the network takes 8 (4 masked, 4 reference); with "
            "fewer the mouth comes out flat and beige: build the avatar anew"
        )
    latents = torch.cat([t.half() for t in items]).contiguous()
    broken = (~latents.isfinite()).flatten(1).any(1).nonzero()
    if len(broken):
        raise PacketError(f"{file.name}: entry {int(broken[0])} is not finite in fp16; build the avatar anew")
    return latents


def _numbers(file: Path, width: int) -> np.ndarray:
    """Return a pickled list of `width` coordinates each as int64 (N, width)."""
    found = restricted_load(file.read_bytes(), file.name)
    is_list = isinstance(found, (list, tuple)) or (isinstance(found, np.ndarray) and found.ndim == 2)
    if not is_list or not len(found):
        raise PacketError(
            f"{file.name}: must be a list of {width} pixel coordinates each, is {kind_of(found)}"
        )
    for i, row in enumerate(found):
        if not _is_row(row, width):
            raise PacketError(
                f"{file.name}, entry {i}: must be {width} pixel coordinates within {_LARGEST}, is {kind_of(row)}"
            )
    return np.array([[int(v) for v in row] for row in found], np.int64).reshape(-1, width)


def _is_row(row: Any, width: int) -> bool:
    """Whether `row` is flat and of plain numbers. Looked at one by one: lists in lists can unfold without end."""
    if not isinstance(row, (list, tuple, np.ndarray)) or (isinstance(row, np.ndarray) and row.ndim != 1):
        return False
    return len(row) == width and all(
        isinstance(v, (int, float, np.integer, np.floating))
        and not isinstance(v, bool)
        and -_LARGEST <= v <= _LARGEST  # false for NaN
        for v in row
    )


def read_facts(file: Path) -> dict[str, Any]:
    """Return the JSON object of a file, {} for other JSON. PacketError if it is none."""
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as e:
        raise PacketError(f"{file.name}: not valid JSON ({e})") from None
    return facts if isinstance(facts, dict) else {}


def kind_of(value: Any, depth: int = 0) -> str:
    """Say what `value` is, for an error: dtype and shape, or the kind of a container and of its first entry."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, (list, tuple)):
        first = f", the first {kind_of(value[0], depth + 1)}" if value and depth < _KIND_DEPTH else ""
        return f"a list of {len(value)}{first}"
    return type(value).__name__
