"""Synthesise the speech of one voice and one split into a shard: 16 kHz int16 audio plus mouth curves.

Shard (npz): audio (n,) int16; curve (m, 3) float16 at 100 Hz, m = n / 160; starts (k + 1,) int32 sample offsets of
the k utterances, each a multiple of 160; texts as JSON. No silence is put between utterances here.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from . import text as texts
from . import visemes, voices

RATE = 16000
HOP = RATE // visemes.CURVE_HZ


def make_voice(name: str, work: Path):
    if name == "joe":
        return voices.Piper()
    if name == "espeak":
        return voices.Espeak()
    if name == "blend":
        return voices.Kokoro(work, "", voices.KOKORO_TRAINED)
    return voices.Kokoro(work, name)


def utterance(engine, sentence: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One sentence as (audio int16 at 16 kHz, multiple of 160 samples; curve float16)."""
    import soxr

    audio, rate, timings = engine.speak(sentence, rng)
    curve = visemes.curves(timings, len(audio) / rate)
    audio = soxr.resample(audio, rate, RATE)
    peak = max(float(np.abs(audio).max()), 1e-4)
    audio = audio * (0.7 / peak)
    n_steps = -(-len(audio) // HOP)
    audio = np.pad(audio, (0, n_steps * HOP - len(audio)))
    rest = np.tile(np.array(visemes.REST, np.float32), (max(0, n_steps - len(curve)), 1))
    curve = np.concatenate([curve, rest])[:n_steps]
    return np.round(audio * 32767).astype(np.int16), curve.astype(np.float16)


def make_shard(name: str, split: str, seconds: float, seed: int, work: Path) -> Path:
    engine = make_voice(name, work)
    rng = np.random.default_rng(seed)
    audio, curve, starts, spoken, total, began = [], [], [0], [], 0, time.time()
    for sentence in texts.sentences(split, seed):
        one_audio, one_curve = utterance(engine, sentence, rng)
        audio.append(one_audio)
        curve.append(one_curve)
        spoken.append(sentence)
        total += len(one_audio)
        starts.append(total)
        if total >= seconds * RATE:
            break
    path = work / "speech" / f"{split}_{name}_{seed}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, audio=np.concatenate(audio), curve=np.concatenate(curve), starts=np.array(starts, np.int32),
             texts=json.dumps(spoken))
    spent = time.time() - began
    print(f"{path.name}: {len(spoken)} sentences, {total / RATE:.1f} s in {spent:.1f} s", flush=True)
    return path


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="synthesise shards: voice:split:seconds:seed ...")
    parser.add_argument("jobs", nargs="+", help="for example joe:train:240:1")
    parser.add_argument("--work", type=Path, default=Path(".train"))
    args = parser.parse_args(argv)
    for job in args.jobs:
        name, split, seconds, seed = job.split(":")
        make_shard(name, split, float(seconds), int(seed), args.work)


if __name__ == "__main__":
    main()
