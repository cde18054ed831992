"""Nodes that look at avatars and their sources: preview, preflight."""

from __future__ import annotations

import torch
from comfy_api.latest import io, ui

from ..comfy_nodes import Avatar, ComfyContext, input_path, input_stamp, search_roots
from ..core.audio import from_comfy
from ..core.images import image_batch
from ..core.packet import AvatarPacket
from .build import DEFAULT_MAX_FRAMES, MAX_FRAMES
from .engines import maker_of
from .nodes import (
    detector_input,
    face_input,
    file_input,
    model_input,
    options_input,
    source_plan,
    widget_problem,
)
from .preview import avatar_overlay


class AvatarPreview(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadAvatarPreview",
            display_name="Avatar Preview",
            category="Talking Head/avatar",
            description=(
                "Shows where the face box (green), the crop (yellow), the mask (red) and the landmarks (blue) of an "
                "avatar lie. Look at it once before a long render."
            ),
            inputs=[
                Avatar.Input("avatar", tooltip="From Build Avatar or Load Avatar."),
                io.Int.Input(
                    "start", default=0, min=0, max=MAX_FRAMES, tooltip="First avatar frame, from 0."
                ),
                io.Int.Input("count", default=1, min=1, max=64, tooltip="How many frames."),
            ],
            outputs=[io.Image.Output("IMAGE")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, avatar: AvatarPacket, start: int, count: int) -> io.NodeOutput:
        image = image_batch(torch.from_numpy(avatar_overlay(avatar, start, count)))
        return io.NodeOutput(image, ui=ui.PreviewImage(image, cls=cls))


class PreflightNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadPreflight",
            display_name="Preflight",
            category="Talking Head/avatar",
            description=(
                "Says before anything is built what will happen with a file: size, rate, turning, length, in how many "
                "frames there is a face and how large it is. Builds nothing."
            ),
            inputs=[
                model_input(),
                file_input("A clip, a picture, or a folder of pictures in ComfyUI's input folder."),
                io.String.Input(
                    "fps", default="", tooltip="Frames a second of the avatar; empty: the clip's own."
                ),
                io.Int.Input(
                    "max_frames",
                    default=DEFAULT_MAX_FRAMES,
                    min=1,
                    max=MAX_FRAMES,
                    tooltip="As in Build Avatar.",
                ),
                face_input(),
                detector_input(),
                io.Audio.Input("audio", optional=True, tooltip="Speech, to see how long the video will be."),
                options_input(),
            ],
            outputs=[
                io.String.Output("REPORT", display_name="report"),
                io.Boolean.Output("READY", display_name="ready"),
                io.Image.Output("IMAGE", display_name="picture"),
            ],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, file: str, fps: str, face: str) -> bool | str:
        return widget_problem(file=file, fps=fps, face=face)

    @classmethod
    def fingerprint_inputs(cls, file: str, **_) -> str:
        return input_stamp(file)

    @classmethod
    def execute(cls, model, file, fps, max_frames, face, detector, audio=None, options=None) -> io.NodeOutput:
        maker, clip = maker_of(model), None if audio is None else from_comfy(audio)
        plan = source_plan(model, options, fps, max_frames, face=face)
        tools = maker.open_tools(detector, search_roots(), plan)
        found = maker.preflight(ComfyContext(), input_path(file), model, plan, tools, clip)
        image, text = image_batch(torch.from_numpy(found.picture)[None]), found.text()
        return io.NodeOutput(text, not found.problems, image, ui=ui.PreviewText(text))


NODES = [AvatarPreview, PreflightNode]
