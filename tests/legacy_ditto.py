"""A Ditto avatar in the forms of other programs, made up and written as those write them."""

import json

import cv2
import numpy as np
import torch

from talkinghead.nodes.ditto.crop import FaceBox, crop_matrices
from talkinghead.nodes.ditto.putback import feather_mask

WIDTH, HEIGHT, VOLUME = 120, 100, (4, 4, 16, 16)
COLUMNS = {"pitch": 66, "yaw": 66, "roll": 66, "t": 3, "exp": 15, "scale": 1, "kp": 15}


class Made:
    """A made-up avatar in memory: n entries, all different; crops that turn and move."""

    def __init__(self, n=4, seed=0):
        rng, self.n = np.random.default_rng(seed), n
        draws = torch.Generator().manual_seed(seed)
        self.frames = rng.integers(0, 256, (n, HEIGHT, WIDTH, 3), dtype=np.uint8)
        self.volumes = torch.randn(n, *VOLUME, generator=draws).half()
        self.pose = {name: torch.randn(n, columns, generator=draws) for name, columns in COLUMNS.items()}
        boxes = [FaceBox((58.3 + 2 * i, 47.9), (70.0, 70.0), 0.1 * i - 0.2) for i in range(n)]
        self.c2o = np.stack([crop_matrices(box).c2o for box in boxes])
        self.facts = {"fps": 25, "source": "clip.mp4"}

    def listed(self, order):
        """Return an avatar whose entries are those of `order`."""
        other = Made(1)
        other.n, other.frames, other.volumes = len(order), self.frames[order], self.volumes[order]
        other.pose, other.c2o = {k: t[order] for k, t in self.pose.items()}, self.c2o[order]
        return other

    def grids(self):
        """Return what `grid_sample` takes to draw the faces into the frames: fp16 (N,H,W,2)."""
        y, x = np.mgrid[:HEIGHT, :WIDTH]
        at = np.stack([x, y, np.ones_like(x)], -1).astype(np.float64)
        o2c = np.linalg.inv(self.c2o.astype(np.float64))
        face = at[None] @ o2c[:, None, :2].transpose(0, 1, 3, 2)
        return torch.from_numpy((2 * face + 1) / 512 - 1).half()

    def masks(self):
        """Return upstream's masks: fp16 (N,1,H,W)."""
        drawn = [cv2.warpAffine(feather_mask(), m[:2], (WIDTH, HEIGHT)) for m in self.c2o]
        return torch.from_numpy(np.stack(drawn))[:, None].half()


def write_six(folder, made, **changes):
    """Write the six files; `changes` replaces what goes into one: file stem -> value."""
    folder.mkdir(parents=True)
    values = {
        "frames": torch.from_numpy(made.frames).permute(0, 3, 1, 2).contiguous(),
        "f_s": made.volumes, "x_s_info": made.pose, "grids": made.grids(), "masks": made.masks(), **changes,
    }  # fmt: skip
    for name, value in values.items():
        if value is not None:
            torch.save(value, folder / f"{name}.pt")
    (folder / "ditto_info.json").write_text(json.dumps(made.facts))
    return folder


def write_lean(folder, made, **changes):
    """Write the lean form: the matrices in x_s_info, neither grids nor masks."""
    info = {**made.pose, "M_c2o": torch.from_numpy(made.c2o)}
    return write_six(folder, made, **{"x_s_info": info, "grids": None, "masks": None, **changes})
