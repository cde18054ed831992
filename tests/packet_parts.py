"""What a small avatar packet is made of, for tests of everything that writes or reads one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from talkinghead.nodes.core.packet import AvatarInfo


def info(avatar_id="anna", n=3, cycle="loop", size=(40, 32), fps=Fraction(25)):
    return AvatarInfo(avatar_id, "musetalk", size, fps, n, cycle, {"name": "t", "sha256": "0"}, {"name": "s"})


def tensors(n=3, size=(40, 32), value=7, channels=8):
    width, height = size
    masks = [np.full((32 + i, 34), i, np.uint8) for i in range(n)]
    return {
        "frames.safetensors": {"frames": torch.full((n, height, width, 3), value, dtype=torch.uint8)},
        "latents.safetensors": {"latents": torch.ones(n, channels, 4, 4, dtype=torch.float16)},
        "geometry.safetensors": {
            "boxes": torch.tensor([[1, 2, 30, 31]] * n, dtype=torch.int32),
            "crops": torch.tensor([[0, 0, 34, 32 + i, 1, 2, 29, 29] for i in range(n)], dtype=torch.int32),
            "found": torch.ones(n, dtype=torch.bool),
            "mask": torch.from_numpy(np.concatenate([m.ravel() for m in masks])),
            "mask_offsets": torch.tensor(np.cumsum([0] + [m.size for m in masks])),
            "mask_shapes": torch.tensor([m.shape for m in masks], dtype=torch.int32),
        },
    }


def ditto_info(avatar_id="anna", n=3, cycle="loop", size=(40, 32), fps=Fraction(25)):
    return AvatarInfo(avatar_id, "ditto", size, fps, n, cycle, {"name": "t", "sha256": "0"}, {"name": "s"})


def ditto_tensors(n=3, size=(40, 32), volume=(2, 3, 4, 4), n_keypoints=21, n_bins=66):
    """Return what a Ditto packet holds: every number another, the crop in the middle of the frame."""
    width, height = size
    widths = {"pitch": n_bins, "yaw": n_bins, "roll": n_bins, "t": 3, "exp": 3 * n_keypoints, "scale": 1}
    widths |= {"kp": 3 * n_keypoints, "eye_open": 2, "eye_ball": 6}
    rng = torch.Generator().manual_seed(5)
    features = {name: torch.randn(n, columns, generator=rng) for name, columns in widths.items()}
    side = min(size) / 2
    c2o = torch.tensor([[side / 512, 0, width / 4], [0, side / 512, height / 4], [0, 0, 1]])
    features["c2o"] = c2o.repeat(n, 1, 1)
    features["f_s"] = torch.randn(n, *volume, generator=rng).half()
    features["found"] = torch.ones(n, dtype=torch.bool)
    frames = torch.arange(n * height * width * 3).reshape(n, height, width, 3).to(torch.uint8)
    return {"frames.safetensors": {"frames": frames}, "features.safetensors": features}
