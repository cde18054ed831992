"""Training pictures in the crop frame: target, reference and where the mouth is, drawn fresh for every step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import presenter
from .identity import LUMA, MOUTH_DARK, Look, sample_looks

# Rows and columns of the crop, as shares of its side. TIGHT is the lip box of the PSNR bar.
TIGHT = (0.61, 0.89, 0.27, 0.73)
LOWER_FROM = 0.5


def box_slices(size: int, box: tuple[float, float, float, float] = TIGHT) -> tuple[slice, slice]:
    top, bottom, left, right = (round(size * v) for v in box)
    return slice(top, bottom), slice(left, right)


def jitter(view: Tensor, amount: float = 0.02) -> Tensor:
    """Move each edge of the boxes by up to `amount` of their size, as real face boxes wander."""
    size = (view[:, 2:] - view[:, :2]).repeat(1, 2)
    return view + size * amount * (2 * torch.rand_like(view) - 1)


def draw(look: Look, pose: Look, mouth: Tensor, view: Tensor, size: int) -> tuple[Tensor, Tensor]:
    return presenter.render(look, pose, mouth, view, size, size)


class Painter:
    """Draws batches; `compiled` fuses the drawing into a few kernels."""

    def __init__(self, size: int, device: torch.device | str, compiled: bool):
        self.size, self.device = size, device
        self.draw = torch.compile(draw, dynamic=False) if compiled else draw

    def scene(self, n: int) -> tuple[Look, Look, Tensor]:
        look = sample_looks(n, self.device)
        pose = presenter.sample_poses(n, self.device)
        return look, pose, jitter(presenter.face_box(look, pose))

    def pair(self, mouth: Tensor, same_pose: float = 0.93) -> tuple[Tensor, Tensor, Look]:
        """Target pictures with `mouth` and references with another mouth, each (B, 3, size, size) in 0..1."""
        n = len(mouth)
        look, pose, view = self.scene(n)
        other = presenter.sample_poses(n, self.device)
        keep = torch.rand(n, 1, 1, 1, device=self.device) < same_pose
        ref_pose = {k: torch.where(keep, pose[k], other[k]) for k in pose}
        ref_view = torch.where(keep[:, :, 0, 0], view, jitter(presenter.face_box(look, ref_pose)))
        kind = torch.rand(n, 1, device=self.device)
        closed = torch.zeros_like(mouth)
        closed[:, 1] = 0.5
        ref_mouth = torch.where(kind < 0.6, closed, mouth.roll(7, 0))
        target, _ = self.draw(look, pose, mouth, view, self.size)
        reference, _ = self.draw(look, ref_pose, ref_mouth, ref_view, self.size)
        return target, reference, look

    def singles(self, n: int) -> Tensor:
        """Pictures with random mouths, half of them closed or nearly so."""
        mouth = torch.rand(n, 3, device=self.device)
        mouth[:, 0] *= (torch.rand(n, device=self.device) < 0.75).float()
        mouth[:, 2] *= (mouth[:, 1] < 0.5).float()
        look, pose, view = self.scene(n)
        return self.draw(look, pose, mouth, view, self.size)[0]


def to_input(picture: Tensor) -> Tensor:
    """0..1 -> the network's -1..1, rounded to the 8 bits that inference sees."""
    return (picture * 255).round() / 127.5 - 1


def blacked(whole: Tensor, from_row: int) -> Tensor:
    masked = whole.clone()
    masked[:, :, from_row:] = -1.0
    return masked


def weight_map(size: int, device: torch.device | str, upper: float, lips: float) -> Tensor:
    """Weight of every pixel: `upper` above the blacked part, 1 below, `lips` in a box a little over TIGHT."""
    weight = torch.ones(1, 1, size, size, device=device)
    weight[:, :, : round(size * LOWER_FROM) - 2] = upper
    top, bottom, left, right = TIGHT
    rows, cols = box_slices(size, (top - 0.02, bottom + 0.02, left - 0.03, right + 0.03))
    weight[:, :, rows, cols] = lips
    return weight / weight.mean()


def picture_loss(made: Tensor, truth: Tensor, weight: Tensor) -> Tensor:
    """Weighted L1 + 2 MSE in 0..1 units, and an L1 of 8x8 means that holds the skin tone."""
    diff = 0.5 * (made.float() - truth.float())
    sharp = (weight * (diff.abs() + 2 * diff.square())).mean()
    tone = (F.avg_pool2d(weight, 8) * F.avg_pool2d(diff, 8).abs()).mean()
    edge_x = (weight[..., 1:] * (diff[..., 1:] - diff[..., :-1]).abs()).mean()
    edge_y = (weight[..., 1:, :] * (diff[..., 1:, :] - diff[..., :-1, :]).abs()).mean()
    return sharp + 1.5 * tone + 0.25 * (edge_x + edge_y)


def dark_threshold(look: Look) -> Tensor:
    """Luma below which a pixel of the lip box counts as the inside of the mouth, (B,)."""
    inside = sum(w * c for w, c in zip(LUMA, MOUTH_DARK, strict=True))
    lip = presenter.luma(look["lip"])[:, 0, 0]
    return inside + 0.4 * (lip - inside)


def soft_opening(picture: Tensor, threshold: Tensor) -> Tensor:
    """Smooth count of dark pixels in the lip box, share of the box; picture in 0..1. (B,)"""
    rows, cols = box_slices(picture.shape[-1])
    level = presenter.luma(picture[:, :, rows, cols].float())
    return torch.sigmoid((threshold[:, None, None] - level) / 0.025).mean(dim=(1, 2))
