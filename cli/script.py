"""A script from a file or from standard input, as text, whatever editor wrote it."""

from __future__ import annotations

import codecs
import re
import sys
from pathlib import Path

STDIN = "-"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f]")


def read_script(name: str) -> tuple[str, str | None]:
    """Return (text, warning or None) of the file `name`, or of standard input for "-".

    UTF-8 with or without its mark, UTF-16 with one, else Windows-1252 with a warning, which old Windows editors
    write. Lines end in \\n. ValueError for a file that is missing, empty or no text.
    """
    where = "standard input" if name == STDIN else f"--text-file {name!r}"
    try:
        if name == STDIN and sys.stdin is None:
            raise OSError("it is closed")
        data = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as e:
        raise ValueError(
            f"{where} cannot be read ({e.strerror or e}); give a text file, or - for standard input"
        ) from e
    text, encoding = _decoded(data, where)
    if not text.strip():
        raise ValueError(f"{where} is empty; there is nothing to say")
    warning = None
    if encoding == "cp1252":
        warning = f"{where} is not UTF-8 and was read as Windows-1252; save it as UTF-8 if letters are wrong"
    return text.replace("\r\n", "\n").replace("\r", "\n"), warning


def _decoded(data: bytes, where: str) -> tuple[str, str]:
    marked = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)
    problem: UnicodeDecodeError | None = None
    for encoding in (marked,) if marked else ("utf-8", "cp1252"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError as e:
            problem = problem or e
            continue
        if control := _CONTROLS.search(text):
            raise ValueError(
                f"{where} is no text: character {control.start()} is U+{ord(control[0]):04X}; "
                "save the script as plain text in UTF-8"
            )
        return text, encoding
    raise ValueError(
        f"{where} is no text in UTF-8 ({problem.reason} at byte {problem.start}); save the script as plain text in UTF-8"
    )
