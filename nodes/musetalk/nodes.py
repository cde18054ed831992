"""MuseTalk nodes: loader, avatar builder, render."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..comfy_nodes import Avatar, ComfyContext, Frames, Speech, model_folders
from ..comfy_nodes import MuseTalkModel as ModelSocket
from ..core.images import mask_box, parse_box, rgb_frames
from ..core.timeline import CYCLES, parse_fps
from .bake import build_avatar
from .handle import CHECKPOINTS, PRECISIONS, MuseTalkModel
from .presenters import check_new_id
from .render import MAX_BATCH, CropStream


class MuseTalkLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadMuseTalkLoader",
            display_name="MuseTalk Loader",
            category="Talking Head/MuseTalk",
            description=(
                "Chooses the MuseTalk weights. The embedded ones are small, come with the pack and run on any CPU; "
                "they are made for the demo presenters, not for photographs."
            ),
            inputs=[
                io.Combo.Input(
                    "checkpoint",
                    options=list(CHECKPOINTS),
                    tooltip="embedded: 10 MB, no download, 128 px mouths.",
                ),
                io.Combo.Input(
                    "precision", options=list(PRECISIONS), tooltip="fp32 is exact and the fastest on CPUs."
                ),
            ],
            outputs=[ModelSocket.Output("MODEL", display_name="model")],
        )

    @classmethod
    def execute(cls, checkpoint: str, precision: str) -> io.NodeOutput:
        return io.NodeOutput(MuseTalkModel(checkpoint, precision))


class BuildAvatar(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadBuildAvatar",
            display_name="Build Avatar",
            category="Talking Head/avatar",
            description=(
                "Computes once all that depends on the presenter and keeps it in models/talkinghead/avatars. "
                "An avatar of the same name is replaced; keep clips to a few seconds, they are repeated."
            ),
            inputs=[
                ModelSocket.Input("model", tooltip="The model that will render this avatar."),
                io.Image.Input(
                    "image", tooltip="One picture, or the frames of a short clip (2 s are enough)."
                ),
                io.String.Input("name", default="presenter", tooltip="Name of the avatar and of its folder."),
                io.String.Input(
                    "fps",
                    default="25",
                    tooltip="Frames a second of the clip; 25 suits the engines. Unused for a still.",
                ),
                io.Combo.Input(
                    "cycle",
                    options=list(CYCLES),
                    default="pingpong",
                    tooltip=(
                        "How frames repeat: pingpong (forward, backward) fits any clip, loop fits one whose end meets "
                        "its start, still shows the first frame."
                    ),
                ),
                io.String.Input(
                    "box",
                    default="",
                    tooltip=(
                        "Face box x1,y1,x2,y2 in pixels of the picture: from the brows to just below the chin, its half "
                        "height at the tip of the nose. Leave empty to use the mask."
                    ),
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Painted over the face; its bounds are the box. One, or one a frame.",
                ),
            ],
            outputs=[
                Avatar.Output("AVATAR", display_name="avatar"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def execute(
        cls, model: MuseTalkModel, image: torch.Tensor, name: str, fps: str, cycle: str, box: str, mask=None
    ) -> io.NodeOutput:
        ctx, frames = ComfyContext(), rgb_frames(image)
        if cycle == "still":
            frames = frames[:1]
        boxes = _boxes(box, mask, len(frames), tuple(frames.shape[1:3]))
        packet = build_avatar(
            ctx,
            model,
            frames.cpu().numpy(),
            boxes,
            model_folders("avatars")[0],
            check_new_id(name),
            parse_fps(fps),
            cycle,
        )
        missing = [i for i, b in enumerate(boxes) if b is None]
        if missing:
            ctx.warn(f"no mask in frames {', '.join(map(str, missing))}: they are shown as they are")
        ctx.report.fact("avatar", f"{packet.path}, {packet.info.n_frames} frames, face box {boxes[0]}")
        return io.NodeOutput(packet, ctx.report.text())


class MuseTalkRender(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadMuseTalkRender",
            display_name="MuseTalk Render",
            category="Talking Head/MuseTalk",
            description=(
                "Draws the speaking face crop of every video frame. Lazy: the work happens in Write Video or "
                "Frames to Images. Connect Composite behind it to get full frames."
            ),
            inputs=[
                ModelSocket.Input("model", tooltip="From MuseTalk Loader."),
                Avatar.Input("avatar", tooltip="Built with the same model."),
                Speech.Input("speech", tooltip="From Speech Features, with the same model."),
                io.Int.Input(
                    "batch",
                    default=8,
                    min=1,
                    max=MAX_BATCH,
                    tooltip="Frames the network runs at once. 8 is best on CPUs; more needs more memory.",
                ),
            ],
            outputs=[Frames.Output("CROPS", display_name="crops")],
        )

    @classmethod
    def execute(cls, model: object, avatar: object, speech: object, batch: int) -> io.NodeOutput:
        return io.NodeOutput(CropStream(model, avatar, speech, batch))


def _boxes(box: str, mask: torch.Tensor | None, n: int, size: tuple[int, int]) -> list:
    if box.strip():
        return [parse_box(box)] * n
    if mask is None:
        raise ValueError("give the face as box x1,y1,x2,y2 or connect a mask painted over it")
    mask = mask[None] if mask.ndim == 2 else mask
    if tuple(mask.shape[1:]) != size or len(mask) not in (1, n):
        raise ValueError(
            f"the mask is {len(mask)} x {mask.shape[2]}x{mask.shape[1]}, the picture {n} x {size[1]}x{size[0]}; "
            "give one mask, or one a frame, of the picture's size"
        )
    boxes = [mask_box(m) for m in mask]
    if not any(boxes):
        raise ValueError("the mask is empty; paint over the face")
    return boxes * n if len(boxes) == 1 else boxes


NODES = [MuseTalkLoader, BuildAvatar, MuseTalkRender]
