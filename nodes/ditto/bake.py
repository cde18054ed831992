"""Building a Ditto avatar packet: a stream of frames and where the face lies in them in; volumes, poses and crops out.

Frames and volumes go to the packet's files as they are made and are mapped from there, so a long clip is never whole
in memory. Source: spec/ditto.md 6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..avatars.build import (
    BATCH,
    check_engine,
    check_length,
    describe_info,
    fill_frames,
    plain_config,
    speaking,
)
from ..core.face_views import nearest
from ..core.frames import FrameStream, RunContext
from ..core.loop import choose_cycle
from ..core.packet import AvatarInfo, AvatarPacket, DittoReader, PacketDraft, check_new_place, preview_jpeg
from ..core.packet_readers import crop_problems
from ..core.report import FrameList
from .avatar_options import DittoAvatarOptions
from .crop import CROP_SIZE, CropMatrices, crop_picture, network_input
from .handle import EMBEDDED, DittoModel
from .model import DittoModelConfig, DittoModules
from .register import Registered
from .smooth import smooth_source

MAX_UPSCALE = 2
OFFICIAL_EXTRACTORS: Mapping[str, Any] = {"name": "legacy import", "sha256": "official-ditto"}
"""What made the features of an imported packet, as far as anyone knows: the legacy forms do not say."""

Register = Callable[[np.ndarray], Registered]
"""Called with the mapped frames, uint8 (N, H, W, 3) RGB: read only what is needed, never write."""


def bake(
    ctx: RunContext,
    model: DittoModel,
    stream: FrameStream,
    register: Register,
    root: Path,
    avatar_id: str,
    cycle: str = "auto",
    source: Mapping[str, Any] | None = None,
    options: DittoAvatarOptions | None = None,
) -> AvatarPacket:
    """Write the packet `root / avatar_id` of `stream` (RGB) and return it opened.

    Args:
        register: gives every frame the crop of its face and its eyes; a frame without a face is shown untouched (or as
            `options.missing` says).
        cycle: still, loop, pingpong, or auto (still for one frame, loop where the end meets the start).
        source: name and sha256 of where the frames come from, kept for the record; by default their own hash.
        options: crop, smoothing and what else; by default upstream's.

    Raises:
        ValueError: no frame has a face, a frame has none and `missing` is "error", sizes that do not fit.
    """
    info, options = stream.info, options or DittoAvatarOptions()
    check_length(stream)
    check_new_place(root, avatar_id)
    with PacketDraft(root, "ditto") as draft:
        frames = draft.frames(info.n_frames, info.height, info.width)
        digest = fill_frames(ctx, stream, frames, draft)
        with ctx.report.timed("face detection"):
            seen = register(frames)
        for note in seen.notes:
            ctx.warn(note)
        c2o, found = _crops(seen, (info.width, info.height), options)
        shapes = tensor_shapes(model.config, info.n_frames)
        out = draft.arrays("features.safetensors", shapes)
        found &= _extract(ctx, model, frames, c2o, found, out, draft)
        _fill(out, found, speaking(ctx, found.tolist(), options.missing), c2o, seen, options.smoothing)
        _warn_if_soft(ctx, model, c2o)
        near = nearest(np.flatnonzero(found), info.n_frames)
        cycle = choose_cycle(cycle, frames.__getitem__, info.n_frames, _face_boxes(c2o[near]))
        preview = preview_jpeg(frames[0])
        del frames, out  # Windows does not rename a folder whose files are mapped
        made = AvatarInfo(
            id=avatar_id,
            engine="ditto",
            size=(info.width, info.height),
            fps=info.fps,
            n_frames=info.n_frames,
            cycle=cycle,
            model={"name": model.checkpoint, "sha256": model.identity, "config": plain_config(model.config)},
            source=dict(source or {"name": "frames", "sha256": digest}),
            options=options.to_dict(),
        )
        first = c2o[near[0]]
        x, y = first[:2] @ (CROP_SIZE / 2, CROP_SIZE / 2, 1)
        side = float(np.linalg.norm(first[:2, 0])) * CROP_SIZE
        where = f"crop of {side:.0f} px around {x:.0f},{y:.0f}"
        ctx.report.fact("avatar", f"{root / avatar_id}, {describe_info(made)}, {where}")
        ctx.release_avatars()
        return draft.finish(made, preview)


def check_avatar(model: DittoModel, avatar: AvatarPacket) -> None:
    """Raise ValueError unless `avatar` was built for `model`: engine, weights, shapes of volume and pose."""
    check_engine(avatar, "ditto")
    made_by = avatar.info.model.get("sha256")
    # An import that found no official weights to bind itself to names none.
    unbound = made_by == OFFICIAL_EXTRACTORS["sha256"] and model.checkpoint != EMBEDDED
    if made_by != model.identity and not unbound:
        raise ValueError(
            f"avatar {avatar.info.id!r} was built with weights {str(made_by)[:12]}, the model has "
            f"{model.identity[:12]}; build the avatar again with this model"
        )
    wanted = {name: shape[1:] for name, shape in tensor_shapes(model.config, 1).items()}
    found = {"f_s": avatar.feature_shape, "exp": (avatar.axes["K3"],), "yaw": (avatar.axes["B"],)}
    for name, shape in found.items():
        if shape != wanted[name]:
            raise ValueError(
                f"avatar {avatar.info.id!r} has {name} of {'x'.join(map(str, shape))}, the model takes "
                f"{'x'.join(map(str, wanted[name]))}; build the avatar again with this model"
            )


def tensor_shapes(config: DittoModelConfig, n: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a packet of `n` frames."""
    nets = config.nets
    flat, bins, side = 3 * nets.motion.n_keypoints, nets.motion.n_bins, nets.warp.volume_size
    rows = {"t": 3, "exp": flat, "scale": 1, "kp": flat, "eye_open": 2, "eye_ball": 6}
    rows |= dict.fromkeys(("pitch", "yaw", "roll"), bins)
    return {
        "f_s": (n, nets.appearance.volume_channels, nets.appearance.volume_depth, side, side),
        "c2o": (n, 3, 3),
        "found": (n,),
        **{name: (n, columns) for name, columns in rows.items()},
    }


def _crops(
    seen: Registered, size: tuple[int, int], options: DittoAvatarOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Return c2o (N,3,3) by the options, and which frames have a crop that touches them."""
    c2o, found = options.place(seen.c2o), np.array(seen.found, bool)
    for problem, frames in crop_problems(c2o, size, found).items():
        found &= ~frames
        if not found.any():
            raise ValueError(
                f"no frame has a face: {problem}; give a picture with a visible face, or another crop"
            )
    return c2o, found


def _extract(
    ctx: RunContext,
    model: DittoModel,
    frames: np.ndarray,
    c2o: np.ndarray,
    found: np.ndarray,
    out: Mapping[str, np.ndarray],
    draft: PacketDraft,
) -> np.ndarray:
    """Fill volumes and poses of the frames that have a face; return where they are finite numbers, bool (N,)."""
    nets: DittoModules = ctx.load(model)
    known, finite = np.flatnonzero(found), np.ones(len(frames), bool)
    for start in range(0, len(known), BATCH):
        ctx.check_cancelled()
        at = known[start : start + BATCH]
        pictures = [_network_input(frames[i], c2o[i], model.config.nets.crop_size) for i in at]
        pictures += pictures[-1:] * (BATCH - len(at))  # a batch has one size, whatever is left
        with torch.inference_mode():
            batch = torch.from_numpy(np.concatenate(pictures)).to(ctx.device)
            volumes = nets.nets.appearance(batch.to(nets.weights_dtype)).half()
            made = {"f_s": volumes, **nets.nets.motion(batch)._asdict()}
            values = {name: tensor.cpu().numpy()[: len(at)] for name, tensor in made.items()}
        for name, rows in values.items():
            out[name][at] = rows
            finite[at] &= np.isfinite(rows).all(tuple(range(1, rows.ndim)))
        draft.settle()
        ctx.tick(min(start + BATCH, len(known)), len(known))
    if not finite.all():
        broken = FrameList()
        broken.add(0, (~finite).tolist())
        if not finite[known].any():
            raise ValueError(f"the networks gave no finite numbers for frames {broken}; use precision fp32")
        ctx.warn(f"the networks gave no finite numbers for frames {broken}: they count as without a face")
    return finite


def _network_input(frame: np.ndarray, c2o: np.ndarray, side: int) -> np.ndarray:
    o2c = np.linalg.inv(c2o.astype(np.float64)).astype(np.float32)
    # Black there would be drawn as a bar along the edge of the frame, and blurred into it.
    return network_input(crop_picture(frame, CropMatrices(o2c, c2o), extend=True), side)


def _fill(
    out: Mapping[str, np.ndarray],
    found: np.ndarray,
    speaks: Sequence[bool],
    c2o: np.ndarray,
    seen: Registered,
    smoothing: int,
) -> None:
    """Smooth the poses, give frames without a face what the nearest one with a face has, and fill in the rest."""
    near = nearest(np.flatnonzero(found), len(found))
    pose = {name: torch.from_numpy(np.array(out[name])) for name in DittoReader.POSE}
    for name, rows in smoothed_poses(pose, found, smoothing).items():
        out[name][:] = rows[near].numpy()
    for i in np.flatnonzero(~found):
        out["f_s"][i] = out["f_s"][near[i]]
    out["c2o"][:], out["found"][:] = c2o[near], speaks
    out["eye_open"][:], out["eye_ball"][:] = seen.eye_open[near], seen.eye_ball[near]


def smoothed_poses(
    pose: Mapping[str, torch.Tensor], found: np.ndarray, width: int
) -> dict[str, torch.Tensor]:
    """Average pose series (N, ...) over `width` frames, in each run of frames with a face on its own."""
    out = {name: series.clone() for name, series in pose.items()}
    edges = np.flatnonzero(np.diff(np.concatenate([[0], found.astype(np.int8), [0]])))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        run = smooth_source({name: series[start:end] for name, series in pose.items()}, width)
        for name, series in run.items():
            out[name][start:end] = series
    return out


def _face_boxes(c2o: np.ndarray) -> np.ndarray:
    """Return (N,4) boxes x1, y1, x2, y2 of the middle halves of crops, where the face is."""
    corners = np.array([[1, 1], [3, 1], [3, 3], [1, 3]]) * CROP_SIZE / 4
    at = corners @ c2o[:, :2, :2].transpose(0, 2, 1) + c2o[:, None, :2, 2]
    return np.concatenate([at.min(1), at.max(1)], 1)


def _warn_if_soft(ctx: RunContext, model: DittoModel, c2o: np.ndarray) -> None:
    side = float(np.linalg.norm(c2o[:, :2, 0], axis=1).max()) * CROP_SIZE
    drawn = model.config.nets.render_size
    if side > MAX_UPSCALE * drawn:
        ctx.warn(
            f"the crop is {side:.0f} px, {side / drawn:.1f} times the {drawn} px the network draws: it will look soft; "
            f"scale the pictures down by {side / (MAX_UPSCALE * drawn):.1f}"
        )
