"""Wardrobe nodes behind the sampler: colours at the seam, the compositor, the hands on top."""

from __future__ import annotations

from comfy_api.latest import io

from ..comfy_nodes import ComfyContext
from .composite import composite
from .limits import BAND_LIMIT_PX, BAND_PX, BLOCKY_MODES, MATTE, MATTES, SEAM_MODES
from .repaste import repaste
from .seam import seam_blend
from .socket_nodes import (
    CATEGORY,
    LatentMaskSocket,
    StitchSocket,
    choice_input,
    full_input,
    full_output,
    full_outputs,
    whole_input,
)


class WardrobeComposite(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeComposite",
            display_name="Wardrobe Composite",
            category=CATEGORY,
            description=(
                "Paints the generated crop into the full frames. Where alpha is 0 the source keeps its bits. A mask that "
                "looks like the sampler's is refused: it would bring back hands that the model painted."
            ),
            inputs=[
                full_input("source", "The full frames that were cropped."),
                io.Image.Input(
                    "generated", tooltip="The crop repainted, of the crop's size and number of frames."
                ),
                StitchSocket.Input("stitch", tooltip="From Wardrobe Subject Crop."),
                io.Mask.Input("mask", tooltip="Alpha over the crop, from Wardrobe Pixel Mask."),
                choice_input(
                    "on_blocky",
                    BLOCKY_MODES,
                    (
                        "What happens to a mask whose outline lies on a grid of 8, 16 or 32 px. error, because such a mask "
                        "shows doubled fingers."
                    ),
                ),
                io.Mask.Input(
                    "occluders",
                    optional=True,
                    tooltip="Hands over the crop or the full frames: they keep the source. Saves a Repaste and its frames.",
                ),
            ],
            outputs=full_outputs(),
        )

    @classmethod
    def execute(cls, source, generated, stitch, mask, on_blocky: str, occluders=None) -> io.NodeOutput:
        ctx = ComfyContext()
        return full_output(composite(source, generated, stitch, mask, on_blocky, occluders, ctx), ctx)


class SeamBlend(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeSeamBlend",
            display_name="Wardrobe Seam Blend",
            category=CATEGORY,
            description=(
                "Brings the colours of the generated crop to the picture's. For garments use context_gain; the others pull "
                "what was painted back to the old colours, which is right for faces only."
            ),
            inputs=[
                io.Image.Input("generated", tooltip="The crop repainted."),
                io.Image.Input("source", tooltip="The crop as it was, from Subject Crop."),
                io.Mask.Input("mask", tooltip="Alpha over the crop, from Pixel Mask."),
                choice_input(
                    "mode",
                    SEAM_MODES,
                    default="context_gain",
                    tooltip=(
                        "context_gain: undoes the decoder's drift, measured where nothing was drawn. reinhard_lab: mean "
                        "and spread of the source inside the mask. poisson: the source's border colours, 8 bits, 0.2 to "
                        "0.6 s a frame. none: as it is."
                    ),
                ),
                LatentMaskSocket.Input(
                    "latent_mask",
                    optional=True,
                    tooltip="What the sampler drew anew; without it 64 px round the mask count as that.",
                ),
            ],
            outputs=[io.Image.Output("IMAGE"), io.String.Output("REPORT", display_name="report")],
        )

    @classmethod
    def execute(cls, generated, source, mask, mode: str, latent_mask=None) -> io.NodeOutput:
        ctx = ComfyContext()
        made = seam_blend(generated, source, mask, mode, latent_mask, ctx)
        return io.NodeOutput(made, ctx.report.text())


class Repaste(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeRepaste",
            display_name="Wardrobe Repaste",
            category=CATEGORY,
            description=(
                "Lays the source's own hands over the result. After Subtract Occluders and Pixel Mask, hard changes "
                "nothing; colour_line takes the old garment's colour out of the fingers' edge."
            ),
            inputs=[
                full_input("base", "The result, from Wardrobe Composite."),
                full_input("source", "The full frames that were cropped."),
                StitchSocket.Input(
                    "stitch", optional=True, tooltip="From Subject Crop; occluders may then lie in it."
                ),
                io.Mask.Input(
                    "occluders", tooltip="Hands over the full frames, or over the crop (connect stitch)."
                ),
                io.Image.Input(
                    "generated",
                    optional=True,
                    tooltip="The crop repainted, as Composite got it; colour_line needs it.",
                ),
                choice_input(
                    "matte",
                    MATTES,
                    (
                        "hard: hand pixels are the source's bits. colour_line: pixels at the outline that mix hand and old "
                        "garment get the new one instead (colour error 6 to 0.3); it wants stitch and generated. soft: the "
                        "edge fades inward."
                    ),
                    MATTE,
                ),
                whole_input(
                    "band_px",
                    BAND_PX,
                    (0, BAND_LIMIT_PX),
                    "Pixels on each side of the outline that soft and colour_line may change: at least Pixel Mask's feather_px.",
                ),
            ],
            outputs=full_outputs(),
        )

    @classmethod
    def execute(
        cls, base, source, occluders, matte: str, band_px: int, stitch=None, generated=None
    ) -> io.NodeOutput:
        ctx = ComfyContext()
        return full_output(repaste(base, source, occluders, stitch, generated, matte, band_px, ctx), ctx)


NODES = [WardrobeComposite, SeamBlend, Repaste]
