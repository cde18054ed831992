"""Wardrobe nodes that prove a result: numbers, and second hands."""

from __future__ import annotations

import json

from comfy_api.latest import io, ui

from ..comfy_nodes import ComfyContext
from .ghost import ghost_check
from .limits import GHOST_PX, SHAPE_LIMIT_PX
from .measure import measure
from .socket_nodes import CATEGORY, StitchSocket, full_input, whole_input


class Metrics(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeMetrics",
            display_name="Wardrobe Metrics",
            category=CATEGORY,
            description=(
                "Measures a result against its source: pixels changed where none may be, PSNR, SSIM, flicker, seam, loop "
                "jump. The picture shows where anything changed. About 0.2 s a frame at 1080x1920."
            ),
            inputs=[
                full_input("source", "The full frames that were cropped."),
                full_input("result", "The full frames at the end."),
                StitchSocket.Input(
                    "stitch",
                    optional=True,
                    tooltip="From Subject Crop; mask and occluders may then lie in the crop.",
                ),
                io.Mask.Input(
                    "mask", tooltip="Alpha, over the crop (connect stitch) or over the full frames."
                ),
                io.Mask.Input("occluders", optional=True, tooltip="Hands, to count their changed pixels."),
                io.Boolean.Input(
                    "loop",
                    default=False,
                    tooltip="Also measure the step from the last frame to the first; off, for most clips are no loops.",
                ),
            ],
            outputs=[
                io.String.Output("JSON", display_name="json"),
                io.Image.Output("HEAT", display_name="heat"),
            ],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, source, result, mask, loop: bool, stitch=None, occluders=None) -> io.NodeOutput:
        found, heat = measure(source, result, mask, stitch, occluders, loop, ComfyContext())
        text = json.dumps(found.as_dict(), indent=1)
        return io.NodeOutput(text, heat, ui=ui.PreviewText(text))


class GhostCheck(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeGhostCheck",
            display_name="Wardrobe Ghost Check",
            category=CATEGORY,
            description=(
                "Finds hands in the result where the source has none. No mask keeps a model from painting a second hand on "
                "the garment, so track hands in the result too and compare."
            ),
            inputs=[
                io.Mask.Input("occluders_source", tooltip="Hands tracked in the source."),
                io.Mask.Input("occluders_result", tooltip="Hands tracked in the result with the same words."),
                whole_input(
                    "tolerance_px",
                    GHOST_PX,
                    (0, SHAPE_LIMIT_PX),
                    "Pixels by which hands may be larger; 4 is a tracker's jitter.",
                ),
                whole_input(
                    "min_px",
                    0,
                    (0, 1_000_000),
                    optional=True,
                    tooltip="Connected parts of at most so many pixels are ignored; 0 ignores nothing.",
                ),
            ],
            outputs=[
                io.Boolean.Output("OK", display_name="ok"),
                io.String.Output("REPORT", display_name="report"),
                io.Mask.Output("MASK", display_name="ghosts"),
            ],
        )

    @classmethod
    def execute(cls, occluders_source, occluders_result, tolerance_px: int, min_px: int = 0) -> io.NodeOutput:
        found = ghost_check(occluders_source, occluders_result, tolerance_px, min_px, ComfyContext())
        return io.NodeOutput(found.ok, found.report, found.mask)


NODES = [Metrics, GhostCheck]
