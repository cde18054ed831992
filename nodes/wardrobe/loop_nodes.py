"""Wardrobe nodes that carry a loop through a sampler that knows none."""

from __future__ import annotations

from comfy_api.latest import io

from ..comfy_nodes import ComfyContext
from .limits import FRAME_RULES
from .loop_wrap import MIN_OVERLAP, loop_close, loop_wrap, overlap_for
from .socket_nodes import CATEGORY, choice_input, whole_input


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
                choice_input(
                    "frame_rule",
                    FRAME_RULES,
                    "Numbers of frames the model takes; the repeat is made that long. 17k+5: 175 becomes 192.",
                ),
                whole_input(
                    "min_overlap",
                    MIN_OVERLAP,
                    (0, 256),
                    "Fewest frames to repeat. 4 hides a drift. 0, for a clip that is no loop: only the length is checked.",
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
                whole_input(
                    "overlap",
                    17,
                    (0, 4096),
                    "Frames, from Loop Wrap: connect its output. 17 is what 175 frames of H3 repeat.",
                ),
            ],
            outputs=[io.Image.Output("IMAGE")],
        )

    @classmethod
    def execute(cls, generated, overlap: int) -> io.NodeOutput:
        # Loop Wrap gives 0 for a clip that is no loop: nothing was repeated.
        return io.NodeOutput(loop_close(generated, overlap, ComfyContext()) if overlap else generated)


NODES = [LoopWrap, LoopClose]
