"""A clip to try the wardrobe with, before there is a tracker."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..comfy_nodes import ComfyContext
from ..core.images import image_batch
from .sample import SAMPLES, read_sample
from .socket_nodes import CATEGORY


class SampleClip(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadSampleClip",
            display_name="Sample Clip",
            category=CATEGORY,
            description=(
                "A small drawn clip that comes with the pack, with the masks a tracker would make of it: to try the "
                "wardrobe without weights. Put Load Video and a tracker in its place for your own."
            ),
            inputs=[
                io.Combo.Input(
                    "clip",
                    options=list(SAMPLES),
                    default=SAMPLES[0],
                    tooltip="presenter: 22 frames of 216x384 at 25 fps, a loop with sound; small, so that it runs on any CPU.",
                )
            ],
            outputs=[
                io.Image.Output("IMAGE", display_name="images"),
                io.Audio.Output("AUDIO", display_name="audio"),
                io.Mask.Output("GARMENT", display_name="garment"),
                io.Mask.Output("HANDS", display_name="hands"),
                io.Float.Output("FPS", display_name="fps"),
            ],
        )

    @classmethod
    def execute(cls, clip: str) -> io.NodeOutput:
        sample = read_sample(clip, ComfyContext())
        audio = {
            "waveform": torch.from_numpy(sample.sound.samples.copy())[None],
            "sample_rate": sample.sound.sample_rate,
        }
        images = image_batch(sample.frames)
        return io.NodeOutput(images, audio, sample.garment, sample.hands, float(sample.fps))


NODES = [SampleClip]
