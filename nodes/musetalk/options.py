"""How a face is cut out of its frames and put back: the dials of an avatar, kept in its packet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..avatars.build import MISSING
from ..avatars.source import parse_colour
from .boxes import DEFAULT_MARGIN
from .masks import BLUR_REALTIME, DEFAULT_CHEEKS, MODES, UPPER_RATIO

MASKS = ("mouth", "lower face", *MODES)
"""The first two are drawn from the box; jaw, raw and neck are upstream's and need a parsed face."""


@dataclass(frozen=True)
class AvatarOptions:
    """Dials of one avatar. Defaults are ours; `upstream("1.5")` and `upstream("1.0")` are MuseTalk's.

    mask: which part is put back, one of MASKS. extra_margin: pixels added below a found chin, 0..200.
    bbox_shift: pixels the nose point of a found face is moved down (v1.0's dial for the mouth's opening), -100..100.
    cheek_left, cheek_right: columns of 512 beside the middle that jaw leaves wide, 20..160. expand: side of the
    crop square over the box's longer side, 1.1..3. upper_ratio: share of the square that parser masks clear from above,
    0.3..0.7. blur: their feather as a share of the side, 0..0.3 (upstream: 0.1 realtime, 0.05 offline).
    missing: what happens to frames without a face: shown untouched, the nearest box held, or an error. background:
    what transparent parts are laid on: black, white, gray, green, #rrggbb or r,g,b.
    """

    mask: str = "mouth"
    extra_margin: int = DEFAULT_MARGIN
    bbox_shift: int = 0
    cheek_left: int = DEFAULT_CHEEKS[0]
    cheek_right: int = DEFAULT_CHEEKS[1]
    expand: float = 1.5
    upper_ratio: float = UPPER_RATIO
    blur: float = BLUR_REALTIME
    missing: str = "passthrough"
    background: str = "black"

    def __post_init__(self) -> None:
        for name, known in (("mask", MASKS), ("missing", MISSING)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} {getattr(self, name)!r} is unknown; use one of {', '.join(known)}")
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not low <= value <= high:
                raise ValueError(f"{name} {value!r} is outside {low}..{high}")
        parse_colour(self.background)

    @property
    def background_rgb(self) -> tuple[int, int, int]:
        return parse_colour(self.background)

    @property
    def needs_parsing(self) -> bool:
        """Whether the mask comes from a parsed face."""
        return self.mask in MODES

    @property
    def cheeks(self) -> tuple[int, int]:
        return self.cheek_left, self.cheek_right

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AvatarOptions:
        """Build from `to_dict`'s result; ValueError names a key it does not know."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(
                f"avatar options do not know {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
        return cls(**values)

    @classmethod
    def upstream(cls, version: str) -> AvatarOptions:
        """Return what MuseTalk's own scripts do in `version` "1.5" or "1.0". ValueError for another."""
        presets = {"1.5": cls(mask="jaw"), "1.0": cls(mask="raw", extra_margin=0)}
        if version not in presets:
            raise ValueError(f"MuseTalk {version!r} is unknown; use one of {', '.join(presets)}")
        return presets[version]

    @classmethod
    def default_for(cls, version: str) -> AvatarOptions:
        """Return the defaults for a model of `version`: v1.0 adds no margin, the embedded engine moves the chin."""
        return {"1.0": cls(extra_margin=0), "embedded": cls(mask="lower face")}.get(version, cls())


_RANGES = {
    "extra_margin": (0, 200),
    "bbox_shift": (-100, 100),
    "cheek_left": (20, 160),
    "cheek_right": (20, 160),
    "expand": (1.1, 3.0),
    "upper_ratio": (0.3, 0.7),
    "blur": (0.0, 0.3),
}
