"""All speech of one split as one long stream, and random 30 s pieces of it with augmentation, on any device.

A stream is audio (n,) at 16 kHz, curve (n / 160, 3), and `anchors`: sample positions where a piece may start
(voices repeated by weight). Everything per piece is drawn on the device with static shapes, so a training step
that uses `AudioSource.draw` can be captured in a CUDA graph.
"""

import argparse
import json
import lzma
import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import visemes

RATE, HOP, N_FFT = 16000, 160, 400
QUANT = 8  # audio is kept in steps of 8 / 32768: the noise of that is 83 dB down
WEIGHTS = {"joe": 1.0, "espeak": 0.5, "blend": 1.6}
KOKORO_WEIGHT = 1.8
TOP_HZ = 8000.0


def pack(shards: list[Path], target: Path, seed: int = 0) -> None:
    """Join shards with short rests between utterances; second differences compress to about half."""
    rng = np.random.default_rng(seed)
    audio, curve, spans, at = [], [], [], 0
    for path in sorted(shards):
        data = np.load(path)
        starts = data["starts"]
        first = at
        for a, b in zip(starts[:-1], starts[1:], strict=True):
            rest = int(rng.uniform(0.12, 0.7) * RATE / HOP)
            audio += [data["audio"][a:b], np.zeros(rest * HOP, np.int16)]
            curve += [data["curve"][a // HOP : b // HOP], np.tile(np.array([0, 0.5, 0], np.float16), (rest, 1))]
            at += int(b - a) + rest * HOP
        spans.append((path.stem.split("_", 1)[1].rsplit("_", 1)[0], int(first), int(at)))
    wave = np.round(np.concatenate(audio) / QUANT).astype(np.int32)
    change = np.diff(wave, n=2, prepend=np.zeros(2, np.int32)).astype(np.int16)
    raw = change.view(np.uint8).reshape(-1, 2).T.tobytes()
    np.savez(target, audio=np.frombuffer(lzma.compress(raw, preset=1), np.uint8), curve=np.concatenate(curve),
             spans=json.dumps(spans))
    print(f"{target.name}: {at / RATE / 60:.1f} min, {target.stat().st_size / 1e6:.1f} MB, {spans}")


def unpack(path: Path) -> tuple[np.ndarray, np.ndarray, list]:
    """audio int16, curve float32, spans [(voice, first sample, end)]."""
    data = np.load(path)
    raw = np.frombuffer(lzma.decompress(data["audio"].tobytes()), np.uint8).reshape(2, -1).T
    change = np.ascontiguousarray(raw).view(np.int16).ravel().astype(np.int64)
    wave = np.cumsum(np.cumsum(change)) * QUANT
    spans = json.loads(str(data["spans"]))
    return wave.clip(-32768, 32767).astype(np.int16), data["curve"].astype(np.float32), spans


@lru_cache(maxsize=8)
def warped_filters(n_mels: int, device: torch.device | str, factors: tuple[float, ...]) -> Tensor:
    """Mel filter banks (k, n_mels, bins) with the frequency axis stretched by each factor; 1.0 is Whisper's own."""
    def to_mel(hz):
        return np.where(hz < 1000, hz * 3 / 200, 15 + np.log(np.maximum(hz, 1000) / 1000) / (math.log(6.4) / 27))

    def to_hz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((np.maximum(mel, 15) - 15) * math.log(6.4) / 27))

    edges = to_hz(np.linspace(0, float(to_mel(np.array(TOP_HZ))), n_mels + 2))
    banks = []
    for factor in factors:
        bins = np.linspace(0, TOP_HZ, N_FFT // 2 + 1) * factor
        rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
        fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
        banks.append(np.maximum(0, np.minimum(rise, fall)) * (2 / (edges[2:] - edges[:-2]))[:, None])
    return torch.tensor(np.stack(banks), dtype=torch.float32, device=device)


@lru_cache(maxsize=4)
def _window(device) -> Tensor:
    return torch.hann_window(N_FFT, device=device)


def mel_level(audio: Tensor, filters: Tensor) -> Tensor:
    """log10 mel power (B, n_mels, frames) before floor and scaling; filters (B or 1, n_mels, bins)."""
    spectrum = torch.stft(audio, N_FFT, HOP, window=_window(audio.device), center=True, pad_mode="reflect",
                          return_complex=True)
    power = torch.view_as_real(spectrum[..., :-1]).square().sum(-1)
    return torch.matmul(filters, power).clamp(min=1e-10).log10()


def finish_mel(level: Tensor) -> Tensor:
    return (torch.maximum(level, level.amax(dim=(1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


def join(packed: Path, shards: Path | None) -> tuple[np.ndarray, np.ndarray, list]:
    """A packed file and, if given, all training shards of a folder behind it, as `unpack` returns them."""
    wave, curve, spans = unpack(packed)
    waves, curves, at = [wave], [curve], len(wave)
    for path in sorted(shards.glob("train_*.npz")) if shards else []:
        data = np.load(path)
        waves.append(data["audio"])
        curves.append(data["curve"].astype(np.float32))
        spans.append((path.stem.split("_", 1)[1].rsplit("_", 1)[0], at, at + len(waves[-1])))
        at += len(waves[-1])
    wave = np.concatenate(waves)
    return wave, visemes.shut_in_silence(np.concatenate(curves), wave), spans


class AudioSource:
    """Random augmented pieces.

    Args:
        path: file of `pack`.
        device: where the stream lives.
        piece_s: length of a piece, the encoder's own (30 s for the shipped one).
        n_mels: mel bins.
    """

    FACTORS = tuple(float(f) for f in np.geomspace(0.84, 1.19, 15))

    def __init__(self, path: Path, device: torch.device | str, piece_s: float = 30.0, n_mels: int = 80,
                 shards: Path | None = None, weights: dict | None = None):
        wave, curve, spans = join(path, shards)
        weights = weights or WEIGHTS
        self.device, self.n_samples = device, round(piece_s * RATE)
        self.audio = torch.from_numpy(wave).to(device)
        self.curve = torch.from_numpy(curve).to(device)
        self.filters = warped_filters(n_mels, device, self.FACTORS)
        anchors = []
        for voice, first, end in spans:
            weight = weights.get(voice, 1.0 if shards else KOKORO_WEIGHT)
            anchors.append(np.arange(first, end, int(RATE * 0.4 / weight)))
        self.anchors = torch.from_numpy(np.concatenate(anchors)).to(device)
        self.time = torch.arange(self.n_samples, device=device, dtype=torch.float32) / RATE
        self.row_time = torch.arange(self.n_samples // (2 * HOP), device=device, dtype=torch.float32) / 50 + 0.02

    def _rand(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, device=self.device)

    def _gaps(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Silences per piece: starts, ends (n, 4) in s, and whether the fourth (the tail) is a cut (n, 1)."""
        dur = self.n_samples / RATE
        start = self._rand(n, 4, low=-1, high=dur)
        length = 0.25 + 2.2 * self._rand(n, 4) ** 2
        length[:, 1] *= (self._rand(n) < 0.5).float()
        lead = (self._rand(n) < 0.12).float()
        start[:, 2], length[:, 2] = -1.0, lead * (1.0 + 2.0 * self._rand(n))
        cut = (self._rand(n) < 0.3).float()
        start[:, 3] = torch.where(cut > 0, self._rand(n, low=0.1 * dur, high=dur), torch.full_like(cut, dur + 1))
        length[:, 3] = dur
        whole = self._rand(n) < 0.03
        start[:, 0] = torch.where(whole, torch.full_like(cut, -1.0), start[:, 0])
        length[:, 0] = torch.where(whole, torch.full_like(cut, dur + 2), length[:, 0])
        return start, start + length, cut[:, None]

    def sound(self, n: int) -> tuple[Tensor, tuple]:
        """n pieces of augmented sound (n, samples), and what `curve_at` needs to know of them."""
        start = self.anchors[torch.randint(len(self.anchors), (n,), device=self.device)]
        start = start + torch.randint(RATE // 4, (n,), device=self.device)
        speed = torch.exp(self._rand(n, 1, low=math.log(0.74), high=math.log(1.34)))
        speed = torch.where(self._rand(n, 1) < 0.3, torch.ones_like(speed), speed)
        at = self.time * speed * RATE
        low = at.floor()
        index = (start[:, None] + low.long()) % (len(self.audio) - 1)
        share = at - low
        audio = (self.audio[index] * (1 - share) + self.audio[index + 1] * share) / 32768
        gap_a, gap_b, cut = self._gaps(n)
        heard = self._outside(self.time, gap_a, gap_b, 0.0, 0.008)
        gain = torch.exp(self._rand(n, 1, low=math.log(0.2), high=math.log(1.4)))
        noise = torch.exp(self._rand(n, 1, low=math.log(2e-5), high=math.log(5e-3))) * (self._rand(n, 1) < 0.6)
        tail = (self.time[None] < gap_a[:, 3:]).float()
        audio = (audio * heard * gain + noise * torch.randn_like(audio) * tail).clamp(-1, 1)
        return audio, (start, speed, gap_a, gap_b, cut)

    def curve_at(self, time: Tensor, piece: tuple) -> Tensor:
        """The mouth (n, k, 3) of pieces of `sound` at times (k,) in s."""
        start, speed, gap_a, gap_b, _ = piece
        place = (time * speed) * (RATE / HOP) + (start[:, None] / HOP)
        base = place.floor()
        share = (place - base)[..., None]
        index = base.long() % (len(self.curve) - 1)
        curve = self.curve[index] * (1 - share) + self.curve[index + 1] * share
        open_mask = self._outside(time, gap_a, gap_b, 0.025, 0.07)[..., None]
        rest = torch.zeros_like(curve)
        rest[..., 1] = 0.5
        return rest + (curve - rest) * open_mask

    def draw(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """n pieces: mel (n, n_mels, 2 rows), curve at every row's frame time (n, rows, 3), row mask (n, rows)."""
        audio, piece = self.sound(n)
        mel = self._hide(finish_mel(self._levels(audio)))
        curve = self.curve_at(self.row_time, piece)
        gap_a, cut = piece[2], piece[4]
        row_mask = torch.where((cut > 0) & (self._rand(n, 1) < 0.6), (self.row_time[None] - 0.02 < gap_a[:, 3:]), True)
        return mel, curve, row_mask.float()

    @staticmethod
    def _outside(time: Tensor, gap_a: Tensor, gap_b: Tensor, late: float, ramp: float) -> Tensor:
        """1 outside all gaps, 0 inside from `late` s on, linear over `ramp` s at both ends."""
        before = (gap_a[:, :, None] + late - time) / ramp
        after = (time - (gap_b[:, :, None] - late)) / ramp
        return torch.maximum(before, after).clamp(0, 1).amin(dim=1)

    def _levels(self, audio: Tensor) -> Tensor:
        """`mel_level` with random vocal tracts and colourings, one for each row."""
        n = len(audio)
        warp = torch.randint(len(self.FACTORS), (n,), device=self.device)
        warp = torch.where(self._rand(n) < 0.3, torch.full_like(warp, len(self.FACTORS) // 2), warp)
        level = mel_level(audio, self.filters[warp])
        mel_at = torch.linspace(0, math.pi, level.shape[1], device=self.device)[None, :, None]
        eq = sum(self._rand(n, 1, 1, low=-a, high=a) * torch.cos(k * mel_at) for k, a in ((1, 0.45), (2, 0.3), (3, 0.2)))
        return level + eq * (level > -9.9)

    def _hide(self, mel: Tensor) -> Tensor:
        """Cover one band of mels in half of the pieces, so that no single band is leant on."""
        n, n_mels = mel.shape[:2]
        first = self._rand(n, 1, 1, high=n_mels)
        width = self._rand(n, 1, 1, high=12) * (self._rand(n, 1, 1) < 0.5)
        row = torch.arange(n_mels, device=self.device)[None, :, None]
        covered = (row >= first) & (row < first + width)
        return torch.where(covered, mel.mean(dim=(1, 2), keepdim=True), mel)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="pack shards into one file per split")
    parser.add_argument("--work", type=Path, default=Path(".train"))
    parser.add_argument("--split", nargs="+", default=["train", "validation"])
    args = parser.parse_args(argv)
    (args.work / "carry").mkdir(parents=True, exist_ok=True)
    for split in args.split:
        pack(list((args.work / "speech").glob(f"{split}_*.npz")), args.work / "carry" / f"{split}.npz")


if __name__ == "__main__":
    main()
