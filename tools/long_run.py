"""Does memory stay flat? Renders minutes or hours of speech and prints the process's memory while it goes on.

    python tools/long_run.py --minutes 60

A demo presenter at 320x320, embedded engine, the sound made block by block; frames a second, resident memory (MB) and
threads at even steps of the film. The last lines compare the first and the last part of the run. Needs psutil.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import psutil

from talkinghead.nodes.avatars.names import demo_presenters
from talkinghead.nodes.core.audio import BLOCK, AudioClip
from talkinghead.nodes.core.bench import SPEECH_LIKE_RATE as RATE
from talkinghead.nodes.core.bench import speech_like
from talkinghead.nodes.core.cadence import MODES, Cadence, CadenceOptions
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.images import parse_size
from talkinghead.nodes.core.video_write import WriteOptions, write_video
from talkinghead.nodes.musetalk.bench_overlap import demo_at
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.render import CompositeStream, CropStream
from talkinghead.nodes.musetalk.speech import Speech

WARM_UP = 0.1
"""Part of the run that is left out of the comparison: buffers and plates fill."""


class MadeUpSpeech(AudioClip):
    """Made as it is read; the same at every reading."""

    def __init__(self, seconds: int) -> None:
        super().__init__(RATE, 1, seconds * RATE, "made-up speech")

    def blocks(self, size: int = BLOCK) -> Iterator[np.ndarray]:
        for start in range(0, self.n_samples, size):
            yield speech_like(start, min(size, self.n_samples - start))[None]

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.name} {self.n_samples}".encode()).hexdigest()


class Table:
    """Samples of the run, printed as they are taken."""

    def __init__(self, rows: int) -> None:
        self._process, self._rows, self._began = psutil.Process(), rows, time.perf_counter()
        self.samples: list[dict[str, float]] = []
        print(f"{'minutes':>8} {'frames':>8} {'s':>8} {'fps':>6} {'MB':>8} {'threads':>8}", flush=True)

    def tick(self, done: int, total: int) -> None:
        if done * self._rows < total * (len(self.samples) + 1):
            return
        seconds = time.perf_counter() - self._began
        sample = {
            "minutes": done / 1500,
            "frames": done,
            "s": seconds,
            "fps": done / seconds,
            "MB": self._process.memory_info().rss / 2**20,
            "threads": self._process.num_threads(),
        }
        self.samples.append(sample)
        print(
            "{minutes:8.2f} {frames:8d} {s:8.0f} {fps:6.1f} {MB:8.1f} {threads:8d}".format(**sample),
            flush=True,
        )

    def summary(self) -> dict[str, float]:
        """Median memory of the first and the last third after the warm-up, and the growth from the one to the other."""
        kept = self.samples[int(len(self.samples) * WARM_UP) :]
        third = max(1, len(kept) // 3)
        first, last = (statistics.median(s["MB"] for s in part) for part in (kept[:third], kept[-third:]))
        return {
            "first_third_mb": round(first, 1),
            "last_third_mb": round(last, 1),
            "growth_percent": round(100 * (last / first - 1), 2),
            "highest_mb": round(max(s["MB"] for s in self.samples), 1),
        }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=Fraction, default=Fraction(60), help="of sound (default 60)")
    parser.add_argument("--size", default="320x320", metavar="WxH", help="of the avatar and of the film")
    parser.add_argument("--avatar", default="demo_loop", choices=sorted(demo_presenters()))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--cadence", choices=MODES, help="without it the network draws every frame")
    parser.add_argument("--rows", type=int, default=60, help="lines of the table (default 60)")
    parser.add_argument("--one-thread", action="store_true", help="stages one after the other")
    parser.add_argument("--out", type=Path, help="keep the film there; otherwise it is deleted")
    args = parser.parse_args(arguments)
    sound = MadeUpSpeech(max(1, round(args.minutes * 60)))
    with tempfile.TemporaryDirectory() as folder:
        model = MuseTalkModel()
        avatar = demo_at(RunContext(), model, args.avatar, parse_size(args.size), Path(folder))
        fps = Fraction(25)
        cadence = Cadence(sound, fps, CadenceOptions(args.cadence)) if args.cadence else None
        crops = CropStream(model, avatar, Speech(model, sound, fps), args.batch, cadence)
        table = Table(args.rows)
        ctx = RunContext(progress=table.tick, overlap=False if args.one_thread else None)
        target = args.out or Path(folder) / "long.mp4"
        result = write_video(CompositeStream(crops, avatar), target, ctx, sound, WriteOptions())
    facts = {
        "size": f"{result.width}x{result.height}",
        "frames": result.n_frames,
        "seconds": round(result.seconds, 1),
        "fps": round(result.n_frames / result.seconds, 1),
        **table.summary(),
        "report": ctx.report.as_dict(),
    }
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
