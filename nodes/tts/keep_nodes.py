"""Keep Speech: what a slow engine of another pack said, from disk the next time."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from ..comfy_nodes import model_folders
from ..core.audio import AudioClip, from_comfy
from ..core.report import Report
from .keep import TakeStore, take_key

FOLDER = "kept"
"""Below models/talkinghead/tts; fixed, so that no workflow chooses where files go."""


class KeepSpeech(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadKeepSpeech",
            display_name="Keep Speech",
            category="Talking Head/speech",
            description=(
                "Keeps what another pack's engine said on disk and gives it back without running the engine. It knows `key` "
                "and `reference` only: write the text and every setting of the engine into `key`. Speak does not need it."
            ),
            inputs=[
                io.Audio.Input(
                    "audio",
                    lazy=True,
                    tooltip="From the engine, one clip; asked for only if there is no take for the key yet.",
                ),
                io.String.Input(
                    "key",
                    multiline=True,
                    default="",
                    tooltip=(
                        "The text and what else decides the take: engine, voice, seed, speed. Another key is another take; "
                        "the same key gives the old one, whatever the engine is set to."
                    ),
                ),
                io.Audio.Input(
                    "reference",
                    optional=True,
                    tooltip="The recording that the voice is cloned from; one changed sample makes another take.",
                ),
            ],
            outputs=[io.Audio.Output("AUDIO"), io.String.Output("REPORT", display_name="report")],
        )

    @classmethod
    def validate_inputs(cls, key: str | None = None) -> bool | str:
        try:
            if key is not None:  # None: wired, not known yet
                take_key(key)
        except ValueError as e:
            return str(e)
        return True

    @classmethod
    def check_lazy_status(cls, key: str, audio=None, reference=None) -> list[str]:
        known = audio is not None or store().find(_name(key, reference)) is not None
        return [] if known else ["audio"]

    @classmethod
    def execute(cls, key: str, audio=None, reference=None) -> io.NodeOutput:
        report, name = Report(), _name(key, reference)
        clip = store().find(name, report)
        if clip is not None:
            report.fact("take", f"from disk, {_length(clip)}; the engine did not run")
        elif audio is None:
            raise ValueError(
                "there is no take for this key, and no audio came from the engine; wire its AUDIO and queue again"
            )
        else:
            clip = from_comfy(audio)
            kept = store().put(name, clip, report)
            report.fact("take", f"{'made and kept' if kept else 'made'}, {_length(clip)}")
        return io.NodeOutput(_as_audio(clip), report.text())


def store() -> TakeStore:
    return TakeStore(model_folders("tts")[0] / FOLDER)


def _name(key: str, reference) -> str:
    return take_key(key, None if reference is None else from_comfy(reference))


def _length(clip: AudioClip) -> str:
    return f"{float(clip.seconds):.2f} s at {clip.sample_rate} Hz"


def _as_audio(clip) -> dict:
    # Copied: nobody may write into the memory of the node before.
    return {"waveform": torch.from_numpy(clip.samples.copy())[None], "sample_rate": clip.sample_rate}


NODES = [KeepSpeech]
