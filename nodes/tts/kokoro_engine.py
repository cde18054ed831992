"""Kokoro voices: one network for all of them, a style for each, and blends of styles.

A folder under models/talkinghead/tts that holds kokoro*.onnx beside voices*.bin (or .npz) is a Kokoro model. The
package kokoro-onnx is an extra, imported when it speaks. Kokoro draws no random numbers: every seed sounds the same.

A blend is written "kokoro: af_heart*0.7+af_bella*0.3"; weights are relative, one that is left out is 1.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.audio import need
from .speech_engine import LOADED, Chunk
from .stoppable import StoppableSession

PREFIX = "kokoro: "
INSTALL = "kokoro-onnx"
SAMPLE_RATE = 24000
_PART = re.compile(r"\s*(?P<style>\w+)\s*(?:\*\s*(?P<weight>\d{0,3}(?:\.\d{1,4})?)\s*)?")
_LANGUAGES = {"a": "en-us", "b": "en-gb", "e": "es", "f": "fr-fr", "h": "hi", "i": "it", "p": "pt-br"}
"""By the first letter of a style. Those of j and z speak English: espeak has no usable Japanese or Chinese for Kokoro."""
_DURATIONS = "/encoder/Cast_output_0"
"""Frames of each token in the common export, which does not give them out."""


@dataclass(frozen=True)
class KokoroFiles:
    model: Path
    styles: Path


def kokoro_files(roots: Iterable[Path]) -> KokoroFiles | None:
    """Return the first Kokoro model under `roots`, the one with the shortest name first: kokoro-v1.0 before .int8."""
    for root in map(Path, roots):
        models = root.rglob("kokoro*.onnx") if root.is_dir() else ()
        for model in sorted(models, key=lambda p: (len(p.name), p.as_posix())):
            found = [p for p in sorted(model.parent.glob("voices*")) if p.suffix in (".bin", ".npz")]
            if found:
                return KokoroFiles(model, found[0])
    return None


class KokoroEngine:
    """The styles of one Kokoro model; none without its files."""

    reads_text = True
    seeded = False
    speeds = (0.5, 2.0)

    def __init__(self, files: KokoroFiles | None) -> None:
        self._files = files

    def voices(self) -> list[str]:
        return [f"{PREFIX}{name}" for name in self._styles()]

    def has(self, voice: str) -> bool:
        if not voice.startswith(PREFIX) or self._files is None:
            return False
        parts, styles = _blend(voice), set(self._styles())
        return bool(parts) and all(style in styles for style in parts)

    def languages(self, voice: str) -> tuple[str, ...]:
        return (_language(voice)[:2],)

    def sample_rate(self, voice: str) -> int:
        _package()
        return SAMPLE_RATE

    def files(self, voice: str) -> tuple[Path, ...]:
        return () if self._files is None else (self._files.model, self._files.styles)

    def synthesize(
        self, text: str, voice: str, speed: float = 1.0, seed: int = 0, language: str | None = None
    ) -> Iterator[Chunk]:
        """Yield one Chunk; the package cuts what is over 510 phonemes at marks, else at words."""
        package, files = _package(), self._files
        stats = files.model.stat(), files.styles.stat()
        key = (str(files.model), *((s.st_size, s.st_mtime_ns) for s in stats))
        kokoro = LOADED.get(key, lambda: _load(files, package))
        spoken = _language(voice)
        if language and language[:2] != spoken[:2]:
            spoken = next((known for known in _LANGUAGES.values() if known[:2] == language[:2]), spoken)
        weights = _blend(voice)
        total = sum(weights.values())
        style = sum(kokoro.get_voice_style(name) * np.float32(w / total) for name, w in weights.items())
        audio, rate, timed = kokoro.create_timed(text, style.astype(np.float32), speed, spoken)
        phonemes = tuple((t.phoneme, float(t.start), float(t.end)) for t in timed) or None
        yield Chunk(np.asarray(audio, np.float32).reshape(-1), rate, phonemes, text)

    def _styles(self) -> list[str]:
        if self._files is None:
            return []
        try:
            with zipfile.ZipFile(self._files.styles) as archive:
                return sorted(n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy"))
        except (OSError, zipfile.BadZipFile):
            return []


def _package() -> Any:
    return need("kokoro_onnx", INSTALL, "a Kokoro voice")


def _blend(voice: str) -> dict[str, float]:
    """Return style -> weight of a voice's name; nothing if it is not written as one."""
    weights: dict[str, float] = {}
    for part in voice.removeprefix(PREFIX).split("+"):
        match = _PART.fullmatch(part)
        if match is None or match["weight"] == "":
            return {}
        weight = float(match["weight"]) if match["weight"] else 1.0
        weights[match["style"]] = weights.get(match["style"], 0.0) + weight
    return weights if sum(weights.values()) > 0 else {}


def _language(voice: str) -> str:
    weights = _blend(voice)
    return _LANGUAGES.get(max(weights, key=weights.__getitem__)[0], "en-us")


def _load(files: KokoroFiles, package: Any) -> Any:
    onnxruntime = need("onnxruntime", "onnxruntime", "a Kokoro voice")
    try:
        session = onnxruntime.InferenceSession(_timed_model(files.model), providers=["CPUExecutionProvider"])
        session._model_path = str(files.model)
        return package.Kokoro.from_session(StoppableSession(session), str(files.styles))
    except Exception as e:  # onnxruntime's and numpy's errors have no common base
        reason = str(e).strip().splitlines()[-1][:200] if str(e).strip() else type(e).__name__
        raise ValueError(
            f"{files.model} with {files.styles.name} is not a Kokoro model ({reason}); download both again"
        ) from e


def _timed_model(path: Path) -> str | bytes:
    """Return the model with the frames of its tokens as an output, or its path where that cannot be added."""
    try:
        import onnx
    except ImportError:
        return str(path)
    graph = onnx.load(str(path))
    given = {name for node in graph.graph.node for name in node.output}
    if _DURATIONS not in given or any(out.name == "duration" for out in graph.graph.output):
        return str(path)
    graph.graph.node.append(onnx.helper.make_node("Squeeze", [_DURATIONS], ["duration"]))
    graph.graph.output.append(onnx.helper.make_tensor_value_info("duration", onnx.TensorProto.INT64, None))
    return graph.SerializeToString()
