"""Training pictures: a pool of faces in three poses each, drawn once, and the losses on what is made of them."""

import torch
import torch.nn.functional as F
from demo import presenter
from demo.identity import Look, const, sample_looks
from demo.pictures import dark_threshold
from torch import Tensor

from . import space

N_POSES = 3
MOUTH_BOX = (0.22, 0.15)
"""Half sizes of the box in which dark pixels of open mouths are counted, in the crop's -1..1; centre: `mouth_place`."""


def random_poses(n: int, device: torch.device | str, move: Tensor) -> Look:
    """Poses within what the LMDM is taught, times `move` (n, 1, 1, 1)."""

    def unit() -> Tensor:
        return torch.rand(n, 1, 1, 1, device=device) * 2 - 1

    pose = {"dx": 0.10 * unit() * move, "dy": 0.08 * unit() * move, "roll": 0.09 * unit() * move, "zoom": 0.04 * unit() * move,
            "yaw": 2.4 * unit() * move, "pitch": 2.0 * unit() * move}
    kind = torch.rand(n, 1, 1, 1, device=device)
    shut, some = (kind < 0.15).float(), (kind > 0.7).float()
    pose["blink"] = shut * (0.4 + 0.6 * unit().abs()) + some * 0.28 * unit()
    pose["brow"], pose["gaze"] = 0.055 * unit() * (kind > 0.4), unit()
    return pose


def random_mouths(n: int, device: torch.device | str, curves: Tensor) -> tuple[Tensor, Tensor]:
    """Mouths (n, 3): real ones, closed ones, any; and smiles (n,)."""
    real = curves[torch.randint(len(curves), (n,), device=device)]
    any_ = torch.rand(n, 3, device=device)
    any_[:, 2] *= (any_[:, 1] < 0.5).float()
    closed = torch.zeros_like(any_) + const((0.0, 0.5, 0.0), device)
    kind = torch.rand(n, 1, device=device)
    mouth = torch.where(kind < 0.25, closed, torch.where(kind < 0.80, real, any_))
    smile = (2 * torch.rand(n, device=device) - 1) * (torch.rand(n, device=device) < 0.5)
    return mouth, smile


class Pool:
    """n faces, each N_POSES times in one crop: pictures uint8 (n, N_POSES, 3, S, S) and the truth about them."""

    def __init__(self, n: int, size: int, device: torch.device | str, curves: Tensor, chunk: int = 128):
        self.pictures = torch.empty(n, N_POSES, 3, size, size, dtype=torch.uint8, device=device)
        self.head = torch.empty(n, N_POSES, 7, device=device)
        self.params = torch.empty(n, N_POSES, len(space.PARAMS), device=device)
        self.kp = torch.empty(n, 63, device=device)
        self.edge = torch.empty(n, device=device)
        for first in range(0, n, chunk):
            rows = slice(first, min(first + chunk, n))
            self._draw(rows, rows.stop - first, size, device, curves)

    @torch.no_grad()
    def _draw(self, rows: slice, n: int, size: int, device, curves: Tensor) -> None:
        look = sample_looks(n, device)
        self.kp[rows], self.edge[rows] = space.keypoints(look), dark_threshold(look)
        view = None
        for i in range(N_POSES):
            move = torch.rand(n, 1, 1, 1, device=device) ** 0.5
            pose = random_poses(n, device, move)
            mouth, smile = random_mouths(n, device, curves)
            if i == 0:
                half = (torch.rand(n, 1, device=device) < 0.6).float()
                mouth = torch.where(half > 0, const((0.0, 0.5, 0.0), device).expand(n, 3), mouth)
                view = space.view_of(pose, jitter=1.0)
            picture, _ = presenter.render(space.with_smile(look, smile), pose, mouth, view, size, size)
            self.pictures[rows, i] = (picture * 255).round().to(torch.uint8)
            self.head[rows, i] = space.head(pose, view)
            rest = [pose[k].reshape(-1) for k in ("blink", "gaze", "brow")]
            self.params[rows, i] = torch.stack([*mouth.unbind(1), smile, *rest], 1)

    def pairs(self, n: int):
        """Random ordered pairs: dicts of picture (n, 3, S, S) in 0..1, head, params; and kp, edge of the faces."""
        device = self.kp.device
        face = torch.randint(len(self.kp), (n,), device=device)
        one = torch.randint(N_POSES, (n,), device=device)
        two = (one + 1 + torch.randint(N_POSES - 1, (n,), device=device)) % N_POSES
        sides = [{"picture": self.pictures[face, i].float() / 255, "head": self.head[face, i], "params": self.params[face, i]}
                 for i in (one, two)]
        return *sides, self.kp[face], self.edge[face]


def pixel_grid(size: int, device) -> tuple[Tensor, Tensor]:
    at = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * (2 / size) - 1
    return at[None, None, None, :], at[None, None, :, None]


def mouth_place(points: Tensor) -> Tensor:
    """Middle of the resting mouth of posed key points WITHOUT expression (B, 21, 3): (B, 2)."""
    return 0.5 * (points[:, 14, :2] + points[:, 17, :2]) + const((0.0, 0.04), points.device)


def weight_map(points: Tensor, size: int) -> Tensor:
    """Weight of every pixel (B, 1, S, S), mean 1: mouth and eyes count most."""
    x, y = pixel_grid(size, points.device)

    def blob(place: Tensor, sx: float, sy: float) -> Tensor:
        cx, cy = (place[:, i, None, None, None] for i in (0, 1))
        return torch.exp(-(((x - cx) / sx) ** 2) ** 2 - (((y - cy) / sy) ** 2) ** 2)

    weight = 0.5 + 6.0 * blob(mouth_place(points), 0.24, 0.18)
    for eye in (11, 15):
        weight = weight + 2.5 * blob(points[:, eye, :2], 0.14, 0.12)
    return weight / weight.mean()


def picture_loss(made: Tensor, truth: Tensor, weight: Tensor) -> Tensor:
    """Weighted L1 + 2 MSE in 0..1, L1 of 8x8 means that holds the tone, L1 of edges."""
    diff = made.float() - truth
    sharp = (weight * (diff.abs() + 2 * diff.square())).mean()
    tone = (F.avg_pool2d(weight, 8) * F.avg_pool2d(diff, 8).abs()).mean()
    edge_x = (weight[..., 1:] * (diff[..., 1:] - diff[..., :-1]).abs()).mean()
    edge_y = (weight[..., 1:, :] * (diff[..., 1:, :] - diff[..., :-1, :]).abs()).mean()
    return sharp + tone + 0.5 * (edge_x + edge_y)


def soft_opening(picture: Tensor, edge: Tensor, place: Tensor) -> Tensor:
    """Smooth count of dark pixels in the mouth's box, share of the box: (B,). place (B, 2), the box's centre."""
    x, y = pixel_grid(picture.shape[-1], picture.device)
    inside = ((x - place[:, 0, None, None, None]).abs() < MOUTH_BOX[0]) & ((y - place[:, 1, None, None, None]).abs() < MOUTH_BOX[1])
    level = presenter.luma(picture.float())
    dark = torch.sigmoid((edge[:, None, None] - level) / 0.025) * inside[:, 0]
    return dark.sum(dim=(1, 2)) / inside[:, 0].sum(dim=(1, 2))
