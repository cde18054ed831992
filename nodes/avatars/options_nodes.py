"""Nodes with the dials of an avatar, one for each engine."""

from __future__ import annotations

from comfy_api.latest import io

from ..comfy_nodes import AvatarOptionsSocket, DittoAvatarOptionsSocket
from ..ditto.avatar_options import DittoAvatarOptions
from ..musetalk.options import MASKS, AvatarOptions
from .build import MISSING

_MISSING = "Frames without a face. passthrough: shown untouched and listed. hold: the nearest face is used. error: nothing is built."
_BACKGROUND = "Colour that transparent parts of a picture are laid on: a name, #rrggbb or r,g,b."


class AvatarOptionsNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        d = AvatarOptions()
        return io.Schema(
            node_id="TalkingHeadAvatarOptions",
            display_name="Avatar Options",
            category="Talking Head/avatar",
            description=(
                "How the face is cut out and which part of it is put back. MuseTalk 1.5's own scripts: mask jaw, the "
                "rest as it stands here; 1.0's: mask raw, margin 0."
            ),
            inputs=[
                io.Combo.Input(
                    "mask",
                    options=list(MASKS),
                    default=d.mask,
                    tooltip=(
                        "mouth: lips only, never nostrils, the safe choice. lower face: chin as well. jaw, raw, neck: "
                        "MuseTalk's, from the parsed face."
                    ),
                ),
                io.Int.Input(
                    "extra_margin", default=d.extra_margin, min=0, max=200,
                    tooltip="Pixels added below a found chin; 10 is MuseTalk 1.5's, 1.0 has none.",
                ),
                io.Int.Input(
                    "bbox_shift", default=0, min=-100, max=100,
                    tooltip="Pixels the nose point is moved down, MuseTalk 1.0's dial: more opens the mouth wider. 0 with 1.5.",
                ),
                io.Int.Input(
                    "cheek_left", default=d.cheek_left, min=20, max=160,
                    tooltip="Mask jaw: half width left of the middle, in 512ths of the crop, that is not narrowed.",
                ),
                io.Int.Input(
                    "cheek_right", default=d.cheek_right, min=20, max=160,
                    tooltip="Mask jaw: half width right of the middle, in 512ths of the crop, that is not narrowed.",
                ),
                io.Float.Input(
                    "expand", default=d.expand, min=1.1, max=3.0, step=0.05,
                    tooltip="Side of the square that is masked, over the box's longer side; 1.5 is MuseTalk's.",
                ),
                io.Combo.Input(
                    "missing", options=list(MISSING), default=d.missing, tooltip=_MISSING
                ),
                io.String.Input(
                    "background", default=d.background, tooltip=_BACKGROUND
                ),
            ],
            outputs=[AvatarOptionsSocket.Output("OPTIONS", display_name="options")],
        )  # fmt: skip

    @classmethod
    def execute(cls, **values) -> io.NodeOutput:
        return io.NodeOutput(AvatarOptions(**values))


class DittoAvatarOptionsNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        d = DittoAvatarOptions()
        shift = {"min": -0.5, "max": 0.5, "step": 0.005}
        return io.Schema(
            node_id="TalkingHeadDittoAvatarOptions",
            display_name="Ditto Avatar Options",
            category="Talking Head/avatar",
            description="How the head is cut out of its frames for Ditto. The defaults are upstream's.",
            inputs=[
                io.Float.Input(
                    "crop_scale", default=d.crop_scale, min=1.5, max=4.0, step=0.05,
                    tooltip="Side of the square that is drawn, over the extent of the face; more shows more shoulder, softer.",
                ),
                io.Float.Input(
                    "shift_x", default=d.shift_x, **shift,
                    tooltip="The square's centre along the eyes, in sides: 0.1 is a tenth of the square to the right.",
                ),
                io.Float.Input(
                    "shift_y", default=d.shift_y, **shift,
                    tooltip="The square's centre down the face, in sides; -0.125 leaves room for the hair.",
                ),
                io.Boolean.Input(
                    "rotate", default=d.rotate, tooltip="The square stands upright in the face; off: upright in the picture."
                ),
                io.Int.Input(
                    "smoothing", default=d.smoothing, min=1, max=99, step=2,
                    tooltip="Frames that the poses of a clip are averaged over, odd: 13 keeps a template from trembling, 1 is off.",
                ),
                io.Combo.Input("missing", options=list(MISSING), default=d.missing, tooltip=_MISSING),
                io.String.Input("background", default=d.background, tooltip=_BACKGROUND),
            ],
            outputs=[DittoAvatarOptionsSocket.Output("OPTIONS", display_name="options")],
        )  # fmt: skip

    @classmethod
    def execute(cls, **values) -> io.NodeOutput:
        return io.NodeOutput(DittoAvatarOptions(**values))


NODES = [AvatarOptionsNode, DittoAvatarOptionsNode]
