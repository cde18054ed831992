"""What tests ask of a finished run: that it went well, its video decoded, the files on the server's disk."""

from __future__ import annotations

import io
from dataclasses import dataclass
from fractions import Fraction

import av
import numpy as np
import torch


@dataclass(frozen=True)
class Decoded:
    """A whole video file: frames uint8 (n,H,W,3), rate, seconds of sound."""

    frames: torch.Tensor
    fps: Fraction
    audio_s: float


def decode(data: bytes) -> Decoded:
    with av.open(io.BytesIO(data)) as file:
        fps = file.streams.video[0].average_rate
        frames = [f.to_ndarray(format="rgb24") for f in file.decode(video=0)]
    with av.open(io.BytesIO(data)) as file:
        sounds = [(f.samples, f.sample_rate) for f in file.decode(audio=0)] if file.streams.audio else []
    return Decoded(torch.from_numpy(np.stack(frames)), fps, sum(n / rate for n, rate in sounds))


def run_well(client, prompt: dict):
    run = client.run(prompt)
    assert run.status == "success", run
    return run


def files_of(server) -> set[str]:
    """Return every file under output and temp, hidden ones too."""
    return {str(p) for folder in (server.output, server.temp) for p in folder.rglob("*") if p.is_file()}
