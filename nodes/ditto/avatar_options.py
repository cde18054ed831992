"""How a face is cut out of its frames for Ditto: the dials of an avatar, kept in its packet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ..avatars.build import MISSING
from ..avatars.source import parse_colour
from .crop import CROP_SCALE, CROP_SHIFT, CROP_SIZE

SMOOTHING = 13
"""Frames that the poses of a clip are averaged over."""


@dataclass(frozen=True)
class DittoAvatarOptions:
    """Dials of one avatar; the defaults are upstream's.

    crop_scale: side of the crop over the extent of the face's landmarks, 1.5..4. shift_x, shift_y: of the crop's
    centre along and down the face, in sides, -0.5..0.5. rotate: the crop stands upright in the face; False leaves it
    upright in the picture. smoothing: frames that the poses of a clip are averaged over, odd, 1 (as they are) to 99.
    missing: what happens to frames without a face: shown untouched, the nearest crop held, or an error. background:
    what transparent parts are laid on: black, white, gray, green, #rrggbb or r,g,b.
    """

    crop_scale: float = CROP_SCALE
    shift_x: float = CROP_SHIFT[0]
    shift_y: float = CROP_SHIFT[1]
    rotate: bool = True
    smoothing: int = SMOOTHING
    missing: str = "passthrough"
    background: str = "black"

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ValueError(f"{name} {value!r} is outside {low}..{high}")
        if self.smoothing % 2 != 1:
            raise ValueError(
                f"smoothing {self.smoothing!r} has no middle frame; give an odd number of frames"
            )
        if self.missing not in MISSING:
            raise ValueError(f"missing {self.missing!r} is unknown; use one of {', '.join(MISSING)}")
        if not isinstance(self.rotate, bool):
            raise ValueError(f"rotate {self.rotate!r} is neither True nor False")
        parse_colour(self.background)

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        return parse_colour(self.background)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DittoAvatarOptions:
        """Build from `to_dict`'s result; ValueError names a key it does not know."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(
                f"avatar options do not know {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
        return cls(**values)

    def place(self, c2o: np.ndarray) -> np.ndarray:
        """Return the crops (N,3,3) float32 that these options make of registered ones, which have the defaults.

        The registered crop tells the face's axes, its middle and its extent, so other crops follow without landmarks.
        """
        if (self.crop_scale, self.shift_x, self.shift_y, self.rotate) == (CROP_SCALE, *CROP_SHIFT, True):
            return c2o
        c2o = np.asarray(c2o, np.float64)
        across, down = c2o[:, :2, 0] * CROP_SIZE, c2o[:, :2, 1] * CROP_SIZE  # the crop's sides, in pixels
        middle = c2o[:, :2, 2] + (across + down) / 2 - CROP_SHIFT[0] * across - CROP_SHIFT[1] * down
        grow = self.crop_scale / CROP_SCALE
        centre = middle + grow * (self.shift_x * across + self.shift_y * down)
        if not self.rotate:
            side = np.linalg.norm(across, axis=1)
            across, down = side[:, None] * (1.0, 0.0), side[:, None] * (0.0, 1.0)
        out = np.zeros((len(c2o), 3, 3))
        out[:, :2, 0], out[:, :2, 1] = grow * across / CROP_SIZE, grow * down / CROP_SIZE
        out[:, :2, 2] = centre - grow * (across + down) / 2
        out[:, 2, 2] = 1
        return out.astype(np.float32)


_RANGES = {"crop_scale": (1.5, 4.0), "shift_x": (-0.5, 0.5), "shift_y": (-0.5, 0.5), "smoothing": (1, 99)}
