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
