"""Wardrobe nodes behind the sampler: colours at the seam, the compositor, the hands on top, loops."""

from __future__ import annotations

from comfy_api.latest import io

from ..comfy_nodes import ComfyContext
from .composite import composite
from .limits import BAND_PX, BLOCKY_MODES, FRAME_RULES, MATTES, SEAM_MODES
from .loop_wrap import MIN_OVERLAP, loop_close, loop_wrap, overlap_for
from .repaste import repaste
from .seam import seam_blend
from .socket_nodes import (
    CATEGORY,
    LatentMaskSocket,
    StitchSocket,
    full_input,
    full_output,
    full_outputs,
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
                io.Combo.Input(
                    "on_blocky",
                    options=list(BLOCKY_MODES),
                    default=BLOCKY_MODES[0],
                    tooltip=(
                        "What happens to a mask whose outline lies on a grid of 8, 16 or 32 px. error, because such a mask "
                        "shows doubled fingers."
                    ),
                ),
                io.Mask.Input(
                    "occluders",
                    optional=True,
                    tooltip="Hands over the crop: they keep the source. Saves a Repaste and its full frames.",
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
                io.Combo.Input(
                    "mode",
                    options=list(SEAM_MODES),
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
                    "stitch", optional=True, tooltip="From Subject Crop; occluders then lie in it."
                ),
                io.Mask.Input(
                    "occluders", tooltip="Hands over the crop (connect stitch), or over the full frames."
                ),
                io.Image.Input(
                    "generated", optional=True, tooltip="The crop repainted; colour_line needs it."
                ),
                io.Combo.Input(
                    "matte",
                    options=list(MATTES),
                    default=MATTES[0],
                    tooltip=(
                        "hard: hand pixels are the source's bits. colour_line: pixels at the outline that mix hand and old "
                        "garment get the new one instead (colour error 6 to 1.4). soft: the edge fades inward."
                    ),
                ),
                io.Int.Input(
                    "band_px",
                    default=BAND_PX,
                    min=0,
                    max=16,
                    tooltip="Pixels on each side of the outline that soft and colour_line may change; 4 covers a lens's blur.",
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


class LoopWrap(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeLoopWrap",
            display_name="Wardrobe Loop Wrap",
            category=CATEGORY,
            description=(
                "Repeats the beginning of a loop at its end, so that the sampler sees over the seam. Wardrobe Loop Close "
                "mixes both drawings of it afterwards."
            ),
            inputs=[
                io.Image.Input("images", tooltip="The crop of a loop whose last frame flows into the first."),
                io.Mask.Input("mask", tooltip="What is painted, over the crop; one mask serves all frames."),
                io.Combo.Input(
                    "frame_rule",
                    options=list(FRAME_RULES),
                    default=FRAME_RULES[0],
                    tooltip="Numbers of frames the model takes; the repeat is made that long. 17k+5: 175 becomes 192.",
                ),
                io.Int.Input(
                    "min_overlap",
                    default=MIN_OVERLAP,
                    min=1,
                    max=256,
                    tooltip="Fewest frames to repeat. 4 hides a drift; more mixes longer.",
                ),
            ],
            outputs=[
                io.Image.Output("IMAGE", display_name="images"),
                io.Mask.Output("MASK", display_name="mask"),
                io.Int.Output("OVERLAP", display_name="overlap"),
                io.Int.Output("FRAMES", display_name="frames"),
            ],
        )

    @classmethod
    def execute(cls, images, mask, frame_rule: str, min_overlap: int) -> io.NodeOutput:
        overlap = overlap_for(len(images), frame_rule, min_overlap)
        wrapped, wrapped_mask = loop_wrap(images, mask, overlap)
        return io.NodeOutput(wrapped, wrapped_mask, overlap, len(wrapped))


class LoopClose(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeLoopClose",
            display_name="Wardrobe Loop Close",
            category=CATEGORY,
            description=(
                "Mixes the two drawings of a loop's beginning, so that the last frame flows into the first. The frames "
                "behind the overlap are untouched."
            ),
            inputs=[
                io.Image.Input("generated", tooltip="The wrapped crop repainted."),
                io.Int.Input(
                    "overlap",
                    default=17,
                    min=1,
                    max=4096,
                    tooltip="Frames, from Loop Wrap: connect its output. 17 is what 175 frames of H3 repeat.",
                ),
            ],
            outputs=[io.Image.Output("IMAGE")],
        )

    @classmethod
    def execute(cls, generated, overlap: int) -> io.NodeOutput:
        return io.NodeOutput(loop_close(generated, overlap, ComfyContext()))


NODES = [WardrobeComposite, SeamBlend, Repaste, LoopWrap, LoopClose]
