"""Nodes that make avatars of either engine: from images, from files, from a folder."""

from __future__ import annotations

from dataclasses import replace

import torch
from comfy_api.latest import io, ui

from ..comfy_nodes import (
    Avatar,
    AvatarOptionsSocket,
    ComfyContext,
    DittoAvatarOptionsSocket,
    any_model_input,
    input_names,
    input_path,
    input_stamp,
    model_folders,
    search_roots,
)
from ..core.faces import DETECTORS, parse_choice
from ..core.images import mask_box, parse_box
from ..core.packet import PacketError, open_packet
from ..core.timeline import CYCLES, parse_fps
from .build import DEFAULT_MAX_FRAMES, MAX_FRAMES, SourcePlan
from .engines import maker_of
from .fleet import build_fleet, fleet_sources, split_names
from .names import AUTO_PREFIX
from .source import SOURCE_SUFFIXES, source_of_images

CYCLE_CHOICES = (*CYCLES, "auto")

_CYCLE = (
    "How frames repeat: pingpong (forward, backward) fits any clip, loop fits one whose end meets its start, still "
    "shows the first frame, auto looks which of them fits."
)
_BOX = (
    "Face box x1,y1,x2,y2 in pixels of the picture, instead of detection: from the brows to just below the chin, its "
    "half height at the tip of the nose."
)
_FACE = "Which face, if there are several: largest, a number from the left (0, 1, ...), or x,y: the one nearest there."
_DETECTOR = (
    "light: BlazeFace and FaceMesh, 4 MB, quick on any CPU. exact: the networks that the engine itself uses (a download, "
    "onnxruntime): DWPose and BiSeNet for MuseTalk, InsightFace's for Ditto, which are not for commercial use."
)
_OPTIONS = "From Avatar Options (MuseTalk) or Ditto Avatar Options; without it the defaults of the model."


def model_input() -> io.MultiType.Input:
    return any_model_input(
        "The model that will render this avatar: MuseTalk moves the mouth, Ditto the whole head."
    )


def options_input() -> io.MultiType.Input:
    kinds = [AvatarOptionsSocket, DittoAvatarOptionsSocket]
    return io.MultiType.Input("options", kinds, optional=True, tooltip=_OPTIONS)


def face_input(optional: bool = False) -> io.String.Input:
    return io.String.Input("face", default="largest", optional=optional, tooltip=_FACE)


def detector_input(optional: bool = False) -> io.Combo.Input:
    return io.Combo.Input(
        "detector", options=list(DETECTORS), default=DETECTORS[0], optional=optional, tooltip=_DETECTOR
    )


def file_input(tooltip: str) -> io.Combo.Input:
    return io.Combo.Input(
        "file", options=input_names(SOURCE_SUFFIXES), upload=io.UploadType.video, tooltip=tooltip
    )


class BuildAvatar(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadBuildAvatar",
            display_name="Build Avatar",
            category="Talking Head/avatar",
            description=(
                "Computes once all that depends on the presenter and keeps it in models/talkinghead/avatars. "
                "For clips use Build Avatar from File: it reads rotation and uneven frame rates, and needs less memory."
            ),
            inputs=[
                model_input(),
                io.Image.Input(
                    "image", tooltip="One picture, or the frames of a short clip (2 s are enough)."
                ),
                io.String.Input(
                    "name",
                    default="presenter",
                    tooltip="Name of the avatar and of its folder; empty names it by its content.",
                ),
                io.String.Input(
                    "fps",
                    default="25",
                    tooltip="Frames a second of the clip; 25 suits the engines. Unused for a still.",
                ),
                io.Combo.Input("cycle", options=list(CYCLE_CHOICES), default="pingpong", tooltip=_CYCLE),
                io.String.Input(
                    "box", default="", tooltip=_BOX + " Empty: the mask, or else the face is found."
                ),
                io.Mask.Input(
                    "mask",
                    optional=True,
                    tooltip="Painted over the face; its bounds are the box. One, or one a frame.",
                ),
                face_input(optional=True),
                detector_input(optional=True),
                options_input(),
            ],
            outputs=[
                Avatar.Output("AVATAR", display_name="avatar"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def validate_inputs(cls, fps: str, face: str = "largest", box: str = "") -> bool | str:
        return widget_problem(fps=fps, face=face, box=box)

    @classmethod
    def fingerprint_inputs(cls, name: str = "", **_) -> str:
        return _foreign_build(name)

    @classmethod
    def execute(
        cls, model, image, name, fps, cycle, box, mask=None, face="largest", detector=DETECTORS[0], options=None
    ) -> io.NodeOutput:  # fmt: skip
        image = image[:1] if cycle == "still" else image
        plan = source_plan(model, options, cycle=cycle, box=box, face=face)
        source = source_of_images(image, parse_fps(fps), plan.background_rgb)
        if mask is not None and plan.boxes is None:
            plan = replace(plan, boxes=_mask_boxes(mask, len(image), tuple(image.shape[1:3])))
        return _make(ComfyContext(), model, source, plan, detector, name)


class BuildAvatarFromFile(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadBuildAvatarFromFile",
            display_name="Build Avatar from File",
            category="Talking Head/avatar",
            description=(
                "Builds an avatar from a clip, a picture or a folder of pictures in ComfyUI's input folder. One of the "
                "same content is not built again."
            ),
            inputs=[
                model_input(),
                file_input("A clip, a picture, or a folder of pictures (its frames, in order of their names)."),
                io.String.Input(
                    "name", default="", tooltip="Name of the avatar and of its folder; empty names it by its content."
                ),
                io.String.Input(
                    "fps", default="", tooltip="Frames a second of the avatar; empty: the clip's own, 25 for pictures."
                ),
                io.Int.Input(
                    "max_frames",
                    default=DEFAULT_MAX_FRAMES,
                    min=1,
                    max=MAX_FRAMES,
                    tooltip="Frames used from the start; 50 are 2 s at 25 fps and 311 MB at 1080x1920.",
                ),
                io.Combo.Input("cycle", options=list(CYCLE_CHOICES), default="auto", tooltip=_CYCLE),
                io.String.Input("box", default="", tooltip=_BOX + " Empty: the face is found."),
                face_input(),
                detector_input(),
                options_input(),
            ],
            outputs=[
                Avatar.Output("AVATAR", display_name="avatar"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )  # fmt: skip

    @classmethod
    def validate_inputs(cls, file: str, fps: str, face: str, box: str) -> bool | str:
        return widget_problem(file=file, fps=fps, face=face, box=box)

    @classmethod
    def fingerprint_inputs(cls, file: str, name: str = "", **_) -> str:
        return f"{input_stamp(file)} {_foreign_build(name)}"

    @classmethod
    def execute(
        cls, model, file, name, fps, max_frames, cycle, box, face, detector, options=None
    ) -> io.NodeOutput:
        plan = source_plan(model, options, fps, max_frames, cycle, box, face)
        return _make(ComfyContext(), model, plan.open(input_path(file)), plan, detector, name)


class BuildFleet(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadBuildFleet",
            display_name="Build Fleet",
            category="Talking Head/avatar",
            description=(
                "Builds an avatar from every picture and clip of a folder in ComfyUI's input folder, named after the "
                "files. One that fails is reported and the rest goes on; what is there already is kept."
            ),
            inputs=[
                model_input(),
                io.Combo.Input(
                    "folder",
                    options=input_names(()),
                    tooltip="Folder below ComfyUI's input folder: one picture or clip for each presenter.",
                ),
                io.String.Input(
                    "specific", default="", tooltip="Only these names, with commas between; empty: all of them."
                ),
                io.String.Input(
                    "fps", default="", tooltip="Frames a second of clips; empty: each its own. Unused for pictures."
                ),
                io.Int.Input(
                    "max_frames", default=DEFAULT_MAX_FRAMES, min=1, max=MAX_FRAMES,
                    tooltip="Frames used from the start of each clip.",
                ),
                io.Combo.Input("cycle", options=list(CYCLE_CHOICES), default="auto", tooltip=_CYCLE),
                detector_input(),
                io.Boolean.Input("rebuild", default=False, tooltip="Build what is there already as well."),
                options_input(),
            ],
            outputs=[
                io.String.Output("REPORT", display_name="report"),
                io.Int.Output("READY", display_name="ready"),
                io.Int.Output("FAILED", display_name="failed"),
            ],
            is_output_node=True,
        )  # fmt: skip

    @classmethod
    def validate_inputs(cls, folder: str, fps: str) -> bool | str:
        return widget_problem(file=folder, fps=fps)

    @classmethod
    def fingerprint_inputs(cls, folder: str, **_) -> str:
        return input_stamp(folder)

    @classmethod
    def execute(
        cls, model, folder, specific, fps, max_frames, cycle, detector, rebuild, options=None
    ) -> io.NodeOutput:
        sources = fleet_sources(input_path(folder), split_names(specific) if specific.strip() else [])
        plan = source_plan(model, options, fps, max_frames, cycle)
        maker, root = maker_of(model), model_folders("avatars")[0]
        tools = maker.open_tools(detector, search_roots(), plan)

        def build(ctx, avatar_id, path):
            return maker.make(ctx, model, plan.open(path), plan, tools, root, avatar_id, rebuild)

        report = build_fleet(ComfyContext(), sources, build)
        failed = len(report.failed)
        text = report.text()
        return io.NodeOutput(text, len(report.items) - failed, failed, ui=ui.PreviewText(text))


def source_plan(
    model, options=None, fps="", max_frames=DEFAULT_MAX_FRAMES, cycle="auto", box="", face="largest"
) -> SourcePlan:
    maker = maker_of(model)
    if options is not None and not isinstance(options, maker.options):
        raise ValueError(
            "these options are for the other engine; a MuseTalk model takes Avatar Options, a Ditto model Ditto Avatar Options"
        )
    return maker.plan(
        options=options,
        fps=parse_fps(fps) if fps.strip() else None,
        max_frames=max_frames,
        cycle=cycle,
        boxes=(parse_box(box),) if box.strip() else None,
        face=parse_choice(face),
    )


def _make(ctx: ComfyContext, model, source, plan: SourcePlan, detector: str, name: str) -> io.NodeOutput:
    maker = maker_of(model)
    tools = None if plan.boxes else maker.open_tools(detector, search_roots(), plan)
    packet, _ = maker.make(ctx, model, source, plan, tools, model_folders("avatars")[0], name.strip() or None)
    _made[packet.info.id] = packet.digest
    return io.NodeOutput(packet, ctx.report.text())


_made: dict[str, str] = {}
"""Avatar id -> digest of the packet this server built under it last."""


def _foreign_build(name: str) -> str:
    """Return "" while the packets that nodes here made under `name` are still theirs; else what stands there now.

    An empty name means all that were named by their content. Without it ComfyUI's cache would go on handing out the
    handle of a packet that another graph has replaced, or that was removed.
    """
    name = name.strip()
    changed = []
    for avatar_id in [name] if name else [i for i in _made if i.startswith(AUTO_PREFIX)]:
        if avatar_id not in _made:
            continue
        try:
            digest = open_packet(model_folders("avatars")[0] / avatar_id).digest
        except PacketError:
            digest = "gone"
        if digest != _made[avatar_id]:
            changed.append(f"{avatar_id} {digest}")
    return ", ".join(changed)


def widget_problem(
    file: str | None = None, fps: str = "", face: str = "largest", box: str = ""
) -> bool | str:
    """Return True, or what is wrong with a widget. A value that comes over a wire is not there yet: None."""
    checks = [(parse_fps, fps and fps.strip()), (parse_choice, face), (parse_box, box and box.strip())]
    try:
        if file is not None:
            input_path(file)
        for check, value in checks:
            if value:
                check(value)
    except ValueError as e:
        return str(e)
    return True


def _mask_boxes(mask: torch.Tensor, n: int, size: tuple[int, int]) -> tuple:
    if mask.ndim not in (2, 3):
        raise ValueError(f"a MASK is (batch, height, width), this one is {tuple(mask.shape)}")
    mask = mask[None] if mask.ndim == 2 else mask
    if tuple(mask.shape[1:]) != size or len(mask) not in (1, n):
        raise ValueError(
            f"the mask is {len(mask)} x {mask.shape[2]}x{mask.shape[1]}, the picture {n} x {size[1]}x{size[0]}; "
            "give one mask, or one a frame, of the picture's size"
        )
    boxes = tuple(mask_box(m) for m in mask)
    if not any(boxes):
        raise ValueError("the mask is empty; paint over the face")
    return boxes


NODES = [BuildAvatar, BuildAvatarFromFile, BuildFleet]
