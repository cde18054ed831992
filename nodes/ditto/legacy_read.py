"""Reading the avatar folders other Ditto software wrote, without running anything in them.

| form | files |
|---|---|
| ditto | frames.pt (N,3,H,W), f_s.pt (N,C,D,h,w), x_s_info.pt, grids.pt (N,H,W,2), masks.pt (N,1,H,W), ditto_info.json |
| ditto lean | the same without grids.pt and masks.pt; x_s_info has M_c2o (N,3,3) as well |

x_s_info: kp, pitch, yaw, roll, t, exp, scale of all frames, a dict of stacked tensors or a list of one dict a frame. All
of it goes through torch's weights-only unpickler. A grid says for every pixel of the frame where the face is sampled, as
torch's `grid_sample` takes it with align_corners False, which is its default; with True the crop would be half a face
pixel larger at its edges, which the grid itself does not tell. Source: spec/system.md 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.face_views import nearest
from ..core.legacy_read import TensorFrames, kind_of, legacy_form, load_pt, read_facts
from ..core.packet import CROP_SIDE, DittoReader, PacketError
from ..core.packet_readers import crop_problems
from .smooth import N_BINS

LEAN = ("f_s.pt", "x_s_info.pt", "frames.pt", "ditto_info.json")
DITTO_FORMS: Mapping[str, tuple[str, ...]] = {
    "ditto": ("frames.pt", "f_s.pt", "x_s_info.pt", "grids.pt", "masks.pt", "ditto_info.json"),
    "ditto lean": LEAN,
}
MATRIX = "M_c2o"
_MOST_OFF, _SHARE = 0.5, 0.95
"""Face pixels that a grid may be off its affine map, in this share of its samples: fp16 rounds by 0.06 inside the face."""
_SAMPLES, _LEAST_SAMPLES = 48, 12
"""Samples of a grid along a side of the face, about, and at least."""


@dataclass(frozen=True, eq=False)
class LegacyDitto:
    """What a legacy folder holds, N entries of each.

    volumes: (N,C,D,h,w) floats, mapped. pose: float32 (N, ...) by the names of DittoReader.POSE; eye_open (N,2) and
    eye_ball (N,6) where the folder has them, else None. c2o: float32 (N,3,3); placed: bool (N,), where the crop touches
    the frame, elsewhere c2o is the nearest one. masks: (N,1,H,W) or None. facts: of its JSON file.
    """

    form: str
    frames: TensorFrames
    volumes: Tensor
    pose: dict[str, Tensor]
    c2o: np.ndarray
    placed: np.ndarray
    eye_open: Tensor | None
    eye_ball: Tensor | None
    masks: Tensor | None
    facts: dict[str, Any]

    @property
    def n(self) -> int:
        return self.frames.n


def read_legacy_ditto(folder: Path) -> LegacyDitto:
    """Read all but the pixels and volumes of a legacy avatar.

    Raises:
        UnsafePickle: a file asks for more than plain data; the name it asks for is in the message.
        PacketError: files missing or damaged, other shapes, counts that differ, a grid that is no affine map.
    """
    form = legacy_form(folder, DITTO_FORMS)
    frames, volumes = TensorFrames(folder / "frames.pt"), _volumes(folder / "f_s.pt")
    info = _stacked(folder / "x_s_info.pt")
    pose = {name: _rows(info, name) for name in DittoReader.POSE}
    eyes = [_rows(info, name) if name in info else None for name in ("eye_open", "eye_ball")]
    counts = {"frames.pt": frames.n, "f_s.pt": len(volumes), "x_s_info.pt": len(pose["kp"])}
    masks, grids = None, None
    if form == "ditto":
        masks = _float_tensor(folder / "masks.pt", 4, "(N,1,H,W)")
        counts["masks.pt"] = len(masks)
    if MATRIX not in info:
        if form != "ditto":
            raise PacketError(
                f"x_s_info.pt has no {MATRIX}, and {folder.name} has no grids.pt; build the avatar anew"
            )
        grids = _float_tensor(folder / "grids.pt", 4, "(N,H,W,2)")
        counts["grids.pt"] = len(grids)
    if len(set(counts.values())) != 1 or not frames.n:
        listed = ", ".join(f"{name} {n}" for name, n in counts.items())
        raise PacketError(
            f"{folder.name}: the numbers of entries differ or are 0 ({listed}), frames cannot be paired"
        )
    if grids is None:
        c2o = _matrices(info)
    else:
        if tuple(grids.shape[1:]) != (frames.size[1], frames.size[0], 2):
            raise PacketError(
                f"grids.pt: must be (N,{frames.size[1]},{frames.size[0]},2) as the frames are, is {kind_of(grids)}"
            )
        c2o = _fitted(grids)
    c2o, placed = _usable(c2o, frames.size, folder.name)
    facts = read_facts(folder / "ditto_info.json")
    return LegacyDitto(form, frames, volumes, pose, c2o, placed, *eyes, masks, facts)


def _fitted(grids: Tensor) -> np.ndarray:
    """Return c2o (N,3,3) of grids; where the face is not in the frame, NaN."""
    c2o = np.full((len(grids), 3, 3), np.nan, np.float32)
    for i, grid in enumerate(grids):
        fit = fit_grid(grid, f"grids.pt, entry {i}")
        if fit is not None:
            c2o[i] = fit
    return c2o


def _usable(c2o: np.ndarray, size: tuple[int, int], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return crops that can be used, borrowed from the nearest where one cannot, and which are their own, bool (N,)."""
    problems = crop_problems(c2o, size, np.ones(len(c2o), bool))
    placed = ~np.logical_or.reduce(list(problems.values()))
    if not placed.any():
        worst = max(problems, key=lambda problem: problems[problem].sum())
        raise PacketError(f"{name}: no entry has its face in its frame ({worst}); build the avatar anew")
    return c2o[nearest(np.flatnonzero(placed), len(c2o))], placed


def fit_grid(grid: Tensor, where: str) -> np.ndarray | None:
    """Return c2o (3,3) float32 of a sampling grid (H,W,2): the affine map of least squares over the face's inside.

    Outside the face a grid may be cut off or rounded coarsely, so the inside alone counts, and of it what lies near a
    first fit. None if too little of the face is in the frame to say where it is. PacketError if it is no affine map.
    """
    side, half = CROP_SIDE, CROP_SIDE / 2
    step = max(1, max(grid.shape[:2]) // (4 * _SAMPLES))
    for _ in range(6):
        rows, columns = np.arange(0, grid.shape[0], step), np.arange(0, grid.shape[1], step)
        at = grid[::step, ::step].float().numpy().astype(np.float64)
        inside = (np.abs(at) <= 1).all(2)  # false for NaN
        if inside.sum() >= _SAMPLES**2 or step == 1:
            break
        step = max(1, step // 2)
    y, x = np.nonzero(inside)
    if min(len(set(x.tolist())), len(set(y.tolist()))) < _LEAST_SAMPLES:
        return None
    known = np.stack([columns[x], rows[y], np.ones(len(x))], 1)
    wanted = at[inside] * half + (half - 0.5)  # normalised -> face pixels
    kept = np.ones(len(x), bool)
    for _ in range(3):
        o2c = np.linalg.lstsq(known[kept], wanted[kept], rcond=None)[0].T
        off = np.linalg.norm(known @ o2c.T - wanted, axis=1)
        kept = off <= max(_MOST_OFF, 3 * float(np.median(off)))
    share = float((off <= _MOST_OFF).mean())
    if share < _SHARE or abs(np.linalg.det(o2c[:, :2])) < 1e-9:
        raise PacketError(
            f"{where}: {1 - share:.0%} of its samples are more than {_MOST_OFF} of {side} face pixels off an affine map; "
            "only affine placements can be taken over: build the avatar anew"
        )
    return np.linalg.inv(np.vstack([o2c, (0, 0, 1)])).astype(np.float32)


def _volumes(file: Path) -> Tensor:
    found = _float_tensor(file, (5, 6), "(N,C,D,h,w)")
    if found.ndim == 6 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 5:
        raise PacketError(f"{file.name}: must be a float tensor (N,C,D,h,w), is {kind_of(found)}")
    return found


def _float_tensor(file: Path, axes: int | tuple[int, ...], form: str) -> Tensor:
    found = load_pt(file)
    axes = (axes,) if isinstance(axes, int) else axes
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim not in axes:
        raise PacketError(f"{file.name}: must be a float tensor {form}, is {kind_of(found)}")
    return found


def _stacked(file: Path) -> dict[str, Tensor]:
    """Return the tensors of x_s_info, stacked if they are one dict a frame."""
    found = load_pt(file)
    if isinstance(found, (list, tuple)) and found and all(isinstance(entry, dict) for entry in found):
        names = list(found[0])
        if any(list(entry) != names for entry in found):
            raise PacketError(f"{file.name}: its entries do not have the same names; build the avatar anew")
        columns = {name: [entry[name] for entry in found] for name in names}
        shapes = {n: {kind_of(v) for v in column} for n, column in columns.items()}
        tensors = {n: c for n, c in columns.items() if isinstance(c[0], Tensor) and len(shapes[n]) == 1}
        found = {name: torch.stack(column) for name, column in tensors.items()}
    if not isinstance(found, dict):
        raise PacketError(f"{file.name}: must be a dict of tensors or a list of such, is {kind_of(found)}")
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}


def _rows(info: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a series of x_s_info as float32 (N, columns)."""
    if name not in info:
        raise PacketError(f"x_s_info.pt: {name} is missing; it has {', '.join(info) or 'no tensors'}")
    value = info[name]
    if not value.is_floating_point() or not 1 <= value.ndim <= 4:
        raise PacketError(f"x_s_info.pt: {name} must be floats (N, ...), is {kind_of(value)}")
    rows = value.float().reshape(len(value), -1)
    columns = {
        "pitch": N_BINS,
        "yaw": N_BINS,
        "roll": N_BINS,
        "t": 3,
        "scale": 1,
        "eye_open": 2,
        "eye_ball": 6,
    }
    if name in columns and rows.shape[1] != columns[name]:
        degrees = "; angles in degrees do not tell the logits" if columns[name] == N_BINS else ""
        raise PacketError(
            f"x_s_info.pt: {name} must have {columns[name]} numbers a frame, is {kind_of(value)}{degrees}"
        )
    broken = (~rows.isfinite()).any(1).nonzero()
    if len(broken):
        raise PacketError(
            f"x_s_info.pt: {name} of entry {int(broken[0])} is not finite; build the avatar anew"
        )
    return rows.contiguous()


def _matrices(info: Mapping[str, Tensor]) -> np.ndarray:
    """Return M_c2o as float32 (N,3,3), from (N,3,3) or (N,2,3)."""
    value = info[MATRIX]
    if not value.is_floating_point() or value.ndim != 3 or tuple(value.shape[1:]) not in ((3, 3), (2, 3)):
        raise PacketError(f"x_s_info.pt: {MATRIX} must be floats (N,3,3), is {kind_of(value)}")
    out = np.tile(np.eye(3, dtype=np.float32), (len(value), 1, 1))
    out[:, : value.shape[1]] = value.float().numpy()
    return out
