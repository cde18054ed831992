"""Every constant of the wardrobe stages, so that nodes, stages and pages name the same numbers.

Lengths in pixels, alpha and masks in 0..1, colours in 0..1 of full scale.
"""

from __future__ import annotations

CHUNK = 8
"""Frames worked on at a time: 8 frames of 1080x1920 float RGB are 199 MB."""
THRESHOLD = 0.5
MASK_SLACK = 1e-3
"""How far outside 0..1 a mask may lie: resampling overshoots, a mask in 0..255 does not pass."""

ALIGN = 32
"""One token of MiniMax H3 is 2x2 latents of 16 px."""
ALIGN_LIMIT = 128
PAD_FRACTION = 0.12
PAD_FRACTION_LIMIT, PAD_LIMIT_PX = 2.0, 1024
CROP_MODES = ("static", "tracked")
OVERFLOWS = ("pad", "shrink", "error")
FRAME_RULES = ("none", "17k+5", "4k+1", "8k+1")
BAD_LENGTHS = ("error", "trim", "repeat_last")

SHAPE_LIMIT_PX = 64
"""How far masks may grow, shrink, keep clear, fade or wander."""
FEATHER_PX = 4
FEATHER_MODES = ("inward", "hard")
SLIT_MOUTH_PX = 2
"""How far thin parts reach into broad ones; with 0 the last two rows of a slit (2 % of its pixels) are feathered."""
SLIT_ROWS = 6
"""Rows that a gap between fingers has at least; a notch in a jagged outline has one to three."""
CLEARANCE_WARNING_PX = 2
"""Each pixel of clearance eats slits from both sides: at 3 px all slits of 3 to 6 px are gone."""

LATENT_GROW_LIMIT_PX = 128
GRIDS = ("auto", "h3", "wan", "ltx", "sd", "custom")
AUDIO_MODES = ("keep", "regenerate", "follow")
AUDIO_RATE = 40
"""Latents a second of H3's audio."""

BLOCKY_MODES = ("error", "warn", "ignore")
BLOCKY_GRIDS = (8, 16, 32)
BLOCKY_SHARE = 0.8
"""Share of edges on a grid's lines: natural outlines 0.26 at most, blockified masks 1.0, feathered ones 0.985."""
BLOCKY_DOUBT = 0.4
"""Above it a mask is warned of: natural outlines have up to 0.26, token masks that hands were taken out of 0.41 to 0.58."""
BLOCKY_EDGES = 200
RECTANGLE_LINES = 4

SEAM_MODES = ("none", "context_gain", "reinhard_lab", "poisson")
GAIN_RANGE = (0.9, 1.1)
OFFSET_LIMIT = 0.03
GAIN_RIDGE = 1e-4
"""Weight of "gain 1, offset 0" against the variance of the context: a flat context only moves the offset."""
GAIN_FRAMES = 9
CONTEXT_MIN_PX = 1024
CONTEXT_MARGIN_PX = 64
"""Without a latent mask this much round the alpha counts as regenerated: two tokens of H3."""
SPREAD_RANGE = (0.5, 2.0)
POISSON_BORDER_PX = 2
"""Unpadded masks at the border are off by 18 levels, padded ones by 1."""

MATTES = ("hard", "soft", "colour_line")
MATTE = "colour_line"
"""The nodes' and the command's default: with `hard` the old garment stays round the fingers."""
BAND_PX, BAND_LIMIT_PX = 4, 16
CORE_PX = 2
"""Hand and garment colours are taken this far from the hand's outline, where pixels are not mixed."""

CACHE_MODES = ("auto", "refresh", "bypass")
CACHE_VERSION = 1

INFILL_MODES = ("stabilise", "infill")
AREA_JUMP = 0.3
CUT_DIFFERENCE = 0.25
"""Mean absolute difference of neighbours above which there is a cut."""

STRIDE_LIMIT, GAP_LIMIT = 64, 16

GHOST_PX = 4
"""How far hands may wander between source and result before they count as a second pair."""
