"""Speech for the motion stage: pieces that hold the windows of one pass of the LMDM, and the mouth at every frame."""

from pathlib import Path

import torch
from demo import visemes
from demo.corpus import RATE, AudioSource, mel_level, unpack
from torch import Tensor

FRAMES, PER_WINDOW = 80, 5
N_WINDOWS = FRAMES // PER_WINDOW
HOP, WINDOW, LEAD = 3200, 6480, 2000
SAMPLES = (N_WINDOWS - 1) * HOP + WINDOW
FRAME_LATE_S = 0.02
"""The mouth of frame k is that of k / 25 s + 20 ms."""


def curve_bank(path: str | Path, device: torch.device | str) -> Tensor:
    """All mouths of a packed corpus, (n, 3)."""
    wave, curve, _ = unpack(Path(path))
    return torch.from_numpy(visemes.shut_in_silence(curve, wave)).to(device)


class MotionSound(AudioSource):
    """Augmented pieces of 3.4 s: sound, its windows' mel levels, and mouths."""

    def __init__(self, path: Path, device):
        super().__init__(Path(path), device, piece_s=SAMPLES / RATE)
        self.frame_time = (LEAD / RATE + FRAME_LATE_S) + torch.arange(-1, FRAMES, device=device) / 25
        rows = torch.arange(N_WINDOWS, device=device)[:, None] * HOP + torch.arange(20, device=device) * 320 + 240
        self.row_time = rows.flatten() / RATE

    def _gaps(self, n: int):
        """Fewer and shorter silences than in 30 s."""
        dur = self.n_samples / RATE
        start = self._rand(n, 4, low=-0.5, high=dur)
        length = 0.25 + 1.2 * self._rand(n, 4) ** 2
        length[:, 0] *= (self._rand(n) < 0.3).float()
        length[:, 1] *= (self._rand(n) < 0.12).float()
        lead = (self._rand(n) < 0.15).float()
        start[:, 2], length[:, 2] = -1.0, lead * (1.0 + 1.5 * self._rand(n))
        cut = (self._rand(n) < 0.15).float()
        start[:, 3] = torch.where(cut > 0, self._rand(n, low=0.1 * dur, high=dur), torch.full_like(cut, dur + 1))
        length[:, 3] = dur
        whole = self._rand(n) < 0.04
        start[:, 0] = torch.where(whole, torch.full_like(cut, -1.0), start[:, 0])
        length[:, 0] = torch.where(whole, torch.full_like(cut, dur + 2), length[:, 0])
        return start, start + length, cut[:, None]

    def clips(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mel levels of windows (n, 16, n_mels, 40), mouths at frames -1..79 (n, 81, 3), and at encoder frames (n, 16, 20, 3)."""
        audio, piece = self.sound(n)
        windows = audio.unfold(1, WINDOW, HOP)
        n_mels = self.filters.shape[1]
        warp = torch.randint(len(self.FACTORS), (n,), device=self.device)
        warp = torch.where(self._rand(n) < 0.3, torch.full_like(warp, len(self.FACTORS) // 2), warp)
        filters = self.filters[warp][:, None].expand(-1, N_WINDOWS, -1, -1).flatten(0, 1)
        level = mel_level(windows.flatten(0, 1), filters).unflatten(0, (n, N_WINDOWS))
        at = torch.linspace(0, torch.pi, n_mels, device=self.device)[:, None]
        eq = sum(self._rand(n, 1, 1, 1, low=-a, high=a) * torch.cos(k * at) for k, a in ((1, 0.45), (2, 0.3), (3, 0.2)))
        level = level + eq * (level > -9.9)
        first = self._rand(n, 1, 1, 1, high=n_mels)
        width = self._rand(n, 1, 1, 1, high=10) * (self._rand(n, 1, 1, 1) < 0.4)
        row = torch.arange(n_mels, device=self.device)[:, None]
        level = level.masked_fill((row >= first) & (row < first + width), -7.0)
        return level, self.curve_at(self.frame_time, piece), self.curve_at(self.row_time, piece).unflatten(1, (N_WINDOWS, 20))


def rows_of(frames: Tensor) -> Tensor:
    """Encoder frames (n, 16, 20, w) -> rows of the 80 frames (n, 80, w), as `ChunkRule.rows_of`."""
    return frames[:, :, 6:16].unflatten(2, (PER_WINDOW, 2)).mean(3).flatten(1, 2)


def check_clips(path: Path, device, each: int = 12) -> list:
    """Clean pieces of a packed validation set, per voice: (voice, windows (k, 16, 6480), mouths (k, 81, 3))."""
    wave, curve, spans = unpack(Path(path))
    curve = visemes.shut_in_silence(curve, wave)
    found = []
    for voice, first, end in spans:
        audio, mouths = [], []
        for start in range(first + 160, end - SAMPLES, FRAMES * 640):
            audio.append(torch.from_numpy(wave[start : start + SAMPLES] / 32768.0).float())
            at = (start + LEAD) // 160 + 2 + 4 * torch.arange(-1, FRAMES)
            mouths.append(torch.from_numpy(curve)[at])
        if audio:
            windows = torch.stack(audio[:each]).unfold(1, WINDOW, HOP)
            found.append((voice, windows.to(device).contiguous(), torch.stack(mouths[:each]).to(device)))
    return found
