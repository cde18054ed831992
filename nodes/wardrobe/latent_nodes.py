"""Wardrobe nodes of the sampler's mask, which is a type of its own."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..comfy_nodes import ComfyContext
from .checks import problem
from .latent_mask import (
    audio_length,
    audio_mask,
    find_grid,
    fit_audio,
    latent_mask,
    latents_of_frames,
    preview,
)
from .limits import AUDIO_MODES, AUDIO_RATE, GRIDS, LATENT_GROW_LIMIT_PX
from .socket_nodes import CATEGORY, LatentMaskSocket, choice_input, whole_input


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
                choice_input(
                    "grid",
                    GRIDS,
                    (
                        "How the model cuts pixels into tokens. auto asks the VAE. h3: 32 px, frames 1+4+4+4+4 again and "
                        "again; wan: 16 px, 1 then 4; ltx: 32 px, 1 then 8; sd: 8 px, every frame."
                    ),
                ),
                whole_input(
                    "grow_px",
                    0,
                    (0, LATENT_GROW_LIMIT_PX),
                    "Pixels by which the mask grows before. 0: whole tokens are generous already.",
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
                choice_input(
                    "audio_mode",
                    AUDIO_MODES,
                    (
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
        raise problem("Wardrobe Apply Latent Mask", "audio_latent", "connected", wanted) from None
    return NestedTensor


NODES = [LatentMaskNode, ApplyLatentMask]
