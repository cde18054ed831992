"""Kokoro on many cores of another machine that has onnxruntime but no phonemiser.

`prepare` writes the token lists, the trained styles and the model in two compressed parts; `run` speaks them in
parallel for a given time and writes shards in the format of `speech`, already 16 kHz with curves.
"""

import argparse
import json
import lzma
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

from . import text as texts
from . import visemes
from .voices import KOKORO_TRAINED, LATE_S

FRAME_S = 600 / 24000
HOP = 160


def prepare(work: Path, n_lists: int, n_each: int) -> None:
    from .voices import Kokoro

    engine = Kokoro(work, KOKORO_TRAINED[0]).engine
    lists = []
    for seed in range(n_lists):
        rows, source = [], texts.sentences("train", 5000 + seed)
        for _ in range(n_each):
            phonemes = " ".join(engine.tokenizer.phonemize(next(source), "en-us").split())
            rows.append([engine.tokenizer.known(phonemes), [int(t) for t in engine.tokenizer.tokenize(phonemes)]])
        lists.append(rows)
    styles = {n: engine.get_voice_style(n).astype(np.float16) for n in KOKORO_TRAINED}
    blob = (work / "kokoro.onnx").read_bytes()
    half = len(blob) // 2
    for name, part in (("ka", blob[:half]), ("kb", blob[half:])):
        (work / name).mkdir(exist_ok=True)
        (work / name / "part.xz").write_bytes(lzma.compress(part, preset=1))
    np.savez_compressed(work / "ka" / "tokens.npz", lists=json.dumps(lists), **styles)


def _style(styles: dict, name: str, rng: np.random.Generator) -> np.ndarray:
    if name != "blend":
        return styles[name].astype(np.float32)
    weights = rng.dirichlet(np.full(len(styles), 0.7))
    weights = weights + 0.25 * (weights - weights.mean())
    return sum(w * s.astype(np.float32) for w, s in zip(weights / weights.sum(), styles.values(), strict=True))


def _speak_list(job: tuple) -> str:
    model, tokens_path, name, seed, until, target = job
    import onnxruntime
    from scipy.signal import resample_poly

    data = np.load(tokens_path)
    styles = {n: data[n] for n in KOKORO_TRAINED}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    kinds = {i.name: np.dtype({"tensor(int64)": "i8", "tensor(float)": "f4", "tensor(int32)": "i4"}[i.type])
             for i in session.get_inputs()}
    ids = "input_ids" if "input_ids" in kinds else "tokens"
    rng = np.random.default_rng(seed)
    audio, curve, starts = [], [], [0]
    for symbols, tokens in json.loads(str(data["lists"]))[seed]:
        if time.time() > until:
            break
        style = _style(styles, name, rng)
        row = style[min(len(tokens), len(style)) - 1]
        speed = np.array([rng.uniform(0.8, 1.25)], kinds["speed"])
        outputs = session.run(None, {ids: np.array([[0, *tokens, 0]], kinds[ids]),
                                     "style": row.reshape(1, -1).astype(np.float32), "speed": speed})
        wave, duration = np.asarray(outputs[0]).ravel(), np.asarray(outputs[1]).ravel()
        edges = np.concatenate([[0], np.cumsum(duration)]) * FRAME_S
        late = LATE_S["kokoro"]
        timings = [(s, max(0.0, edges[i + 1] - late), max(0.0, edges[i + 2] - late)) for i, s in enumerate(symbols)]
        shape = visemes.curves(timings, len(wave) / 24000)
        wave = resample_poly(wave, 2, 3)
        wave = wave * (0.7 / max(float(np.abs(wave).max()), 1e-4))
        n = min(len(wave) // HOP, len(shape))
        audio.append(np.round(wave[: n * HOP] * 32767).astype(np.int16))
        curve.append(shape[:n].astype(np.float16))
        starts.append(starts[-1] + n * HOP)
    path = Path(target) / f"train_{name}_{1000 + seed}.npz"
    np.savez(path, audio=np.concatenate(audio), curve=np.concatenate(curve), starts=np.array(starts, np.int32))
    return f"{path.name} {starts[-1] / 16000:.0f} s"


def run(work: Path, seconds: float, n_processes: int) -> None:
    model = work / "kokoro.onnx"
    if not model.exists():
        model.write_bytes(b"".join(lzma.decompress((work / n / "part.xz").read_bytes()) for n in ("ka", "kb")))
    target = work / "speech"
    target.mkdir(exist_ok=True)
    until = time.time() + seconds
    names = (*KOKORO_TRAINED, "blend", "blend", "blend")
    jobs = [(str(model), str(work / "ka" / "tokens.npz"), names[i % len(names)], i, until, str(target))
            for i in range(n_processes)]
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool:
        for line in pool.imap_unordered(_speak_list, jobs):
            print("farm:", line, flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("prepare", "run"))
    parser.add_argument("--work", type=Path, default=Path(".train"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--each", type=int, default=260)
    args = parser.parse_args(argv)
    if args.action == "prepare":
        prepare(args.work, args.processes, args.each)
    else:
        run(args.work, args.seconds, args.processes)


if __name__ == "__main__":
    main()
