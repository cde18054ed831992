"""Random presenters: every look is a dict of tensors, one row per presenter, broadcastable over pictures.

Scalars are (B, 1, 1, 1), colours (B, 3, 1, 1) in 0..1 RGB. Unit of length: nose to chin of the neutral face.
"""

from functools import lru_cache

import torch
from torch import Tensor

Look = dict[str, Tensor]

# light to deep skin, linear in the picture's own RGB
SKINS = (
    (0.95, 0.80, 0.71), (0.91, 0.73, 0.62), (0.86, 0.66, 0.53), (0.80, 0.58, 0.44), (0.70, 0.49, 0.36),
    (0.58, 0.39, 0.28), (0.47, 0.31, 0.22), (0.37, 0.24, 0.18),
)
HAIRS = (
    (0.09, 0.07, 0.06), (0.16, 0.11, 0.08), (0.26, 0.17, 0.11), (0.38, 0.25, 0.15), (0.62, 0.47, 0.28),
    (0.72, 0.60, 0.42), (0.45, 0.22, 0.12), (0.55, 0.54, 0.53), (0.75, 0.74, 0.72),
)
IRISES = ((0.24, 0.15, 0.09), (0.34, 0.23, 0.13), (0.30, 0.36, 0.24), (0.29, 0.40, 0.50), (0.36, 0.40, 0.43))
LUMA = (0.299, 0.587, 0.114)
MOUTH_DARK = (0.115, 0.035, 0.045)

SCALARS = {
    # name: (low, high)
    "face_w": (0.74, 0.86), "jaw": (0.20, 0.40), "face_p": (2.1, 2.6), "skull": (1.2, 1.36),
    "eye_x": (0.315, 0.365), "eye_y": (-0.29, -0.21), "eye_w": (0.145, 0.175), "eye_h": (0.058, 0.085),
    "eye_tilt": (-0.10, 0.16), "brow_y": (-0.50, -0.43), "brow_t": (0.022, 0.05), "brow_arch": (0.02, 0.07),
    "nose_w": (0.11, 0.165), "nose_y": (0.16, 0.22), "mouth_y": (0.46, 0.54), "mouth_w": (0.255, 0.32),
    "lip_u": (0.050, 0.085), "lip_l": (0.068, 0.11), "bow": (0.2, 0.8), "corner": (-0.05, 0.005),
    "hair_line": (-0.98, -0.74), "hair_side": (0.02, 0.12), "hair_top": (0.07, 0.2), "part": (-0.45, 0.45),
    "blush": (0.0, 0.11), "light": (-0.10, 0.10), "neck_w": (0.37, 0.5), "shoulder": (1.42, 1.68),
    "ear": (0.05, 0.09), "teeth": (0.72, 0.92), "vignette": (0.0, 0.18), "gloss": (0.05, 0.2),
}


@lru_cache(maxsize=64)
def const(values: tuple, device: torch.device | str) -> Tensor:
    """A float32 constant kept on the device: a copy from the host cannot be captured in a graph."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def colour(values: tuple, device: torch.device | str) -> Tensor:
    """An RGB constant, (1, 3, 1, 1)."""
    return const(values, device)[None, :, None, None]


def _mix(table: tuple, position: Tensor) -> Tensor:
    colours = const(table, position.device)
    at = position * (len(table) - 1)
    low = at.floor().clamp(0, len(table) - 2).long()
    share = (at - low)[:, None]
    return colours[low] * (1 - share) + colours[low + 1] * share


def sample_looks(n: int, device: torch.device | str, generator: torch.Generator | None = None) -> Look:
    """Draw n random looks."""

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    look: Look = {k: lo + (hi - lo) * rand(n, 1, 1, 1) for k, (lo, hi) in SCALARS.items()}
    tone = rand(n)
    skin = _mix(SKINS, tone) * (0.96 + 0.08 * rand(n, 1)) + 0.02 * (rand(n, 3) - 0.5)
    colours = {"skin": skin.clamp(0.05, 0.98)}
    rosy = 0.25 + 0.5 * rand(n, 1)
    lip = skin * (0.80 - 0.14 * rand(n, 1))
    red = const((0.68, 0.26, 0.27), device) * (0.45 + 0.65 * skin.mean(1, keepdim=True))
    colours["lip"] = lip * (1 - 0.6 * rosy) + red * 0.6 * rosy
    hair = _mix(HAIRS, rand(n)) * (0.85 + 0.3 * rand(n, 1))
    dark = _mix(HAIRS[:3], rand(n))
    deep = (tone > 0.55).float()[:, None]
    colours["hair"] = hair * (1 - deep) + dark * deep
    colours["brow"] = (colours["hair"] * 0.75).clamp(max=0.42)
    colours["iris"] = _mix(IRISES, rand(n) * (1 - 0.7 * deep[:, 0]))
    grey = 0.15 + 0.65 * rand(n, 1)
    colours["cloth"] = (grey + 0.28 * (rand(n, 3) - 0.5)).clamp(0.04, 0.95)
    colours["shirt"] = (0.86 - 0.5 * rand(n, 1) * rand(n, 1) + 0.08 * (rand(n, 3) - 0.5)).clamp(0.1, 0.97)
    base = 0.28 + 0.5 * rand(n, 1)
    colours["back_a"] = (base + 0.14 * (rand(n, 3) - 0.5)).clamp(0.05, 0.95)
    colours["back_b"] = (base + 0.18 * (rand(n, 1) - 0.6) + 0.12 * (rand(n, 3) - 0.5)).clamp(0.05, 0.95)
    look.update({k: v[:, :, None, None].contiguous() for k, v in colours.items()})
    for name, chance in (("long", 0.42), ("bald", 0.08), ("glasses", 0.13), ("suit", 0.5)):
        look[name] = (rand(n, 1, 1, 1) < chance).float()
    look["long"] = look["long"] * (1 - look["bald"])
    look["stubble"] = 0.22 * rand(n, 1, 1, 1) * (1 - look["long"]) * (rand(n, 1, 1, 1) < 0.5)
    look["lashes"] = 0.4 + 0.6 * look["long"]
    return look


def take(look: Look, index: Tensor) -> Look:
    """Rows of a look."""
    return {k: v[index] for k, v in look.items()}


def custom(look: Look, **values) -> Look:
    """A copy of a one-row look with named scalars and colours replaced (for the demo presenters)."""
    out = dict(look)
    for name, value in values.items():
        sample = look[name]
        fresh = torch.tensor(value, dtype=torch.float32, device=sample.device).reshape(1, -1, 1, 1)
        out[name] = fresh.expand_as(sample).clone()
    return out
