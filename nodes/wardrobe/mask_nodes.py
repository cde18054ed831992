"""Wardrobe nodes before the sampler: the crop, what is painted, and the two masks that come of it."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..comfy_nodes import ComfyContext
from .checks import problem
from .crop import subject_crop
from .latent_mask import (
    audio_length,
    audio_mask,
    find_grid,
    fit_audio,
    latent_mask,
    latents_of_frames,
    preview,
)
from .limits import (
    ALIGN,
    AUDIO_MODES,
    AUDIO_RATE,
    BAD_LENGTHS,
    CROP_MODES,
    FEATHER_MODES,
    FEATHER_PX,
    FRAME_RULES,
    GRIDS,
    OVERFLOWS,
    PAD_FRACTION,
)
from .masks import pixel_mask, subtract_occluders
from .plan import BoxRules
from .socket_nodes import CATEGORY, LatentMaskSocket, StitchSocket, full_input, threshold_input


class SubjectCrop(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeSubjectCrop",
            display_name="Wardrobe Subject Crop",
            category=CATEGORY,
            description=(
                "Cuts the same number of pixels round a subject out of every frame, at a size the sampler can take. "
                "Crop first and track inside the crop: a tracker's mask is 288x288 cells whatever the picture's size."
            ),
            inputs=[
                full_input(
                    "images", "The full frames; FRAMES need a quarter of the memory of IMAGE or less."
                ),
                io.Mask.Input(
                    "mask", tooltip="Roughly what will be painted, in all frames; one mask serves all."
                ),
                io.Combo.Input(
                    "mode",
                    options=list(CROP_MODES),
                    default=CROP_MODES[0],
                    tooltip=(
                        "static: one box for the clip, the default, for a presenter who stays. tracked: a box of "
                        "constant size that moves only where it is forced to."
                    ),
                ),
                io.Int.Input(
                    "align",
                    default=ALIGN,
                    min=2,
                    max=128,
                    step=2,
                    tooltip="Pixels that width and height are multiples of, even. 32 is a token of MiniMax H3; Wan needs 16.",
                ),
                io.Float.Input(
                    "pad_fraction",
                    default=PAD_FRACTION,
                    min=0.0,
                    max=2.0,
                    step=0.01,
                    tooltip="Room on each side as a share of the subject; 0.12 shows the model what it paints against.",
                ),
                io.Int.Input(
                    "pad_px",
                    default=0,
                    min=0,
                    max=1024,
                    tooltip="Room on each side in pixels, on top of that.",
                ),
                io.Combo.Input(
                    "overflow",
                    options=list(OVERFLOWS),
                    default=OVERFLOWS[0],
                    tooltip=(
                        "If the box is larger than the picture, after giving up its room: pad repeats the edge (1080 "
                        "becomes 1088), shrink cuts the mask and says by how much, error stops."
                    ),
                ),
                io.Combo.Input(
                    "frame_rule",
                    options=list(FRAME_RULES),
                    default=FRAME_RULES[0],
                    tooltip="Numbers of frames the model takes: 17k+5 MiniMax H3, 4k+1 Wan, 8k+1 LTX; none: any.",
                ),
                io.Combo.Input(
                    "on_bad_length",
                    options=list(BAD_LENGTHS),
                    default=BAD_LENGTHS[0],
                    tooltip=(
                        "For other numbers: error names the nearest ones; trim leaves the last frames as they are; "
                        "repeat_last repeats the last frame, which the compositor drops again."
                    ),
                ),
                io.Boolean.Input(
                    "wrap",
                    default=False,
                    optional=True,
                    tooltip="For tracked: the box ends where it begins, for a loop. Off: it may end anywhere.",
                ),
            ],
            outputs=[
                io.Image.Output("IMAGE", display_name="images"),
                io.Mask.Output("MASK", display_name="mask"),
                StitchSocket.Output("STITCH", display_name="stitch"),
                io.Int.Output("WIDTH", display_name="width"),
                io.Int.Output("HEIGHT", display_name="height"),
                io.Int.Output("FRAMES", display_name="frames"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def execute(
        cls,
        images,
        mask: torch.Tensor,
        mode: str,
        align: int,
        pad_fraction: float,
        pad_px: int,
        overflow: str,
        frame_rule: str,
        on_bad_length: str,
        wrap: bool = False,
    ) -> io.NodeOutput:
        ctx = ComfyContext()
        rules = BoxRules(align, pad_fraction, pad_px, overflow)
        crop = subject_crop(images, mask, rules, mode, frame_rule, on_bad_length, wrap, ctx)
        width, height = crop.stitch.size
        for note in crop.notes:
            ctx.warn(note)
        x, y = crop.stitch.boxes[0, :2]
        ctx.report.fact("crop", f"{crop.stitch.frames} frames of {width}x{height}, the first at {x},{y}")
        ctx.report.fact("source", "{} frames of {}x{}".format(*[crop.stitch.source[i] for i in (0, 2, 1)]))
        return io.NodeOutput(
            crop.images, crop.mask, crop.stitch, width, height, crop.stitch.frames, ctx.report.text()
        )


class SubtractOccluders(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeSubtractOccluders",
            display_name="Wardrobe Subtract Occluders",
            category=CATEGORY,
            description=(
                "Grows the garment's mask and then takes the hands out of it; never the other way round, which would "
                "swallow the hands again. Both results are 0 or 1."
            ),
            inputs=[
                io.Mask.Input("mask", tooltip="The garment, of the crop; one mask serves all frames."),
                io.Mask.Input(
                    "occluders", tooltip="Hands, hair, a microphone: what lies on the garment and must stay."
                ),
                io.Int.Input(
                    "grow_px",
                    default=0,
                    min=-64,
                    max=64,
                    tooltip="Pixels the garment grows, a disc; 4 to 8 swallow the old hem. Below 0 it shrinks.",
                ),
                io.Int.Input(
                    "clearance_px",
                    default=0,
                    min=0,
                    max=64,
                    tooltip=(
                        "Pixels kept free round the hands. 0, because it shows as a ring of the old garment and eats "
                        "the gaps between fingers from both sides: at 3 gaps of 3 to 6 px are gone."
                    ),
                ),
                threshold_input(),
                io.Boolean.Input(
                    "keep_holes",
                    default=True,
                    tooltip="Holes of the garment (skin in a cut-out) are not grown over. On, so that skin stays skin.",
                ),
            ],
            outputs=[
                io.Mask.Output("PAINT", display_name="paint"),
                io.Mask.Output("OCCLUDERS", display_name="occluders"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def execute(cls, mask, occluders, grow_px, clearance_px, threshold, keep_holes) -> io.NodeOutput:
        done = subtract_occluders(
            mask, occluders, grow_px, clearance_px, threshold, keep_holes, ComfyContext()
        )
        return io.NodeOutput(done.paint, done.occluders, done.report)


class PixelMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobePixelMask",
            display_name="Wardrobe Pixel Mask",
            category=CATEGORY,
            description=(
                "Makes the compositor's alpha of what is painted: exactly 0 outside, soft to the inside only, full in "
                "slits and straps. For the sampler use Wardrobe Latent Mask. Nothing here fills holes or gaps."
            ),
            inputs=[
                io.Mask.Input("mask", tooltip="What is painted, from Subtract Occluders."),
                io.Int.Input(
                    "feather_px",
                    default=FEATHER_PX,
                    min=0,
                    max=64,
                    tooltip="Pixels from the outline to full alpha. 4 hides a seam and leaves a hand's edge alone.",
                ),
                io.Combo.Input(
                    "feather_mode",
                    options=list(FEATHER_MODES),
                    default=FEATHER_MODES[0],
                    tooltip="inward: hands stay 100 % source (a blur puts up to 0.64 on them). hard: 0 or 1.",
                ),
                io.Boolean.Input(
                    "keep_thin",
                    default=True,
                    tooltip="Parts too thin for the feather get alpha 1. On: without it slits of 3 to 6 px are lost.",
                ),
                threshold_input(),
            ],
            outputs=[io.Mask.Output("MASK", display_name="alpha")],
        )

    @classmethod
    def execute(cls, mask, feather_px, feather_mode, keep_thin, threshold) -> io.NodeOutput:
        return io.NodeOutput(pixel_mask(mask, feather_px, feather_mode, keep_thin, threshold, ComfyContext()))


class LatentMaskNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeLatentMask",
            display_name="Wardrobe Latent Mask",
            category=CATEGORY,
            description=(
                "Says which latents the sampler draws anew: every token that the mask touches. It fits Apply Latent Mask "
                "and Seam Blend only; for the compositor use Wardrobe Pixel Mask."
            ),
            inputs=[
                io.Mask.Input("mask", tooltip="What is painted, from Subtract Occluders, of the crop."),
                io.Vae.Input("vae", optional=True, tooltip="The video VAE; needed for grid auto."),
                io.Combo.Input(
                    "grid",
                    options=list(GRIDS),
                    default=GRIDS[0],
                    tooltip=(
                        "How the model cuts pixels into tokens. auto asks the VAE. h3: 32 px, frames 1+4+4+4+4 again and "
                        "again; wan: 16 px, 1 then 4; ltx: 32 px, 1 then 8; sd: 8 px, every frame."
                    ),
                ),
                io.Int.Input(
                    "grow_px",
                    default=0,
                    min=0,
                    max=128,
                    tooltip="Pixels by which the mask grows before. 0: whole tokens are generous already.",
                ),
                io.String.Input(
                    "custom",
                    default="",
                    optional=True,
                    tooltip='For grid custom: "spatial,token,head,cycle", Wan is 8,2,1,4 and H3 16,2,,1+4+4+4+4.',
                ),
            ],
            outputs=[
                LatentMaskSocket.Output("LATENT_MASK", display_name="latent_mask"),
                io.Image.Output("PREVIEW", display_name="preview"),
            ],
        )

    @classmethod
    def execute(cls, mask, grid: str, grow_px: int, vae=None, custom: str = "") -> io.NodeOutput:
        made = latent_mask(mask, find_grid(grid, custom, vae), grow_px, ComfyContext())
        return io.NodeOutput(made, preview(made))


class ApplyLatentMask(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWardrobeApplyLatentMask",
            display_name="Wardrobe Apply Latent Mask",
            category=CATEGORY,
            description=(
                "Gives an encoded crop the mask of what the sampler draws anew, at the latent's own size so that nothing "
                "resamples it. With sound it makes the joint latent of MiniMax H3 (core 0.35 or newer)."
            ),
            inputs=[
                io.Latent.Input("video_latent", tooltip="The crop, encoded with the video VAE."),
                LatentMaskSocket.Input(
                    "latent_mask", tooltip="From Wardrobe Latent Mask, of the same frames."
                ),
                io.Latent.Input(
                    "audio_latent", optional=True, tooltip="The clip's sound, encoded with the audio VAE."
                ),
                io.Combo.Input(
                    "audio_mode",
                    options=list(AUDIO_MODES),
                    default=AUDIO_MODES[0],
                    tooltip=(
                        "keep: the sound stays and conditions the picture, the default. regenerate: new sound. follow: new "
                        "sound while anything is painted."
                    ),
                ),
                io.Float.Input(
                    "fps",
                    default=24.0,
                    min=1.0,
                    max=240.0,
                    step=0.001,
                    tooltip="Frames a second of the clip, to lay the sound under it. 24 is what H3 was trained at.",
                ),
                io.Float.Input(
                    "audio_rate",
                    default=float(AUDIO_RATE),
                    min=1.0,
                    max=1000.0,
                    step=0.001,
                    optional=True,
                    tooltip="Latents a second of the audio VAE; 40 is H3's.",
                ),
            ],
            outputs=[io.Latent.Output("LATENT", display_name="latent")],
        )

    @classmethod
    def execute(
        cls,
        video_latent: dict,
        latent_mask,
        audio_mode: str,
        fps: float,
        audio_latent: dict | None = None,
        audio_rate: float = AUDIO_RATE,
    ) -> io.NodeOutput:
        video = _plain("video_latent", video_latent)
        noise = latents_of_frames(latent_mask, video).to(video.device)
        if audio_latent is None:
            return io.NodeOutput({**video_latent, "noise_mask": noise})
        pair = _nested()
        sound = fit_audio(_plain("audio_latent", audio_latent), audio_length(latent_mask, fps, audio_rate))
        heard = audio_mask(latent_mask, sound.shape, audio_mode, fps, audio_rate).to(sound.device)
        return io.NodeOutput(
            {**video_latent, "samples": pair((video, sound)), "noise_mask": pair((noise, heard))}
        )


def _plain(name: str, latent: dict) -> torch.Tensor:
    samples = latent["samples"]
    if not isinstance(samples, torch.Tensor):
        raise problem(
            "Apply Latent Mask", name, "a joint latent of picture and sound", "one of them; separate it first"
        )
    return samples


def _nested() -> type:
    try:
        from comfy.nested_tensor import NestedTensor
    except ImportError:
        wanted = (
            "a ComfyUI that knows joint latents (0.35 or newer); leave audio_latent unconnected or update"
        )
        raise problem("Apply Latent Mask", "audio_latent", "connected", wanted) from None
    return NestedTensor


NODES = [SubjectCrop, SubtractOccluders, PixelMask, LatentMaskNode, ApplyLatentMask]
