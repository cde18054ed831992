"""Master Speech: any AUDIO at broadcast level."""

from __future__ import annotations

import numpy as np
import torch
from comfy_api.latest import io

from ..core.audio import MemoryAudio, from_comfy, mono_blocks
from ..core.report import Report
from .mastering.options import MasterOptions

_DEFAULT = MasterOptions()


def advanced(widget: io.WidgetInput) -> io.WidgetInput:
    """Return `widget` shown only with "Show Advanced"; set here because older ComfyUI has no argument for it."""
    widget.extra_dict["advanced"] = True
    return widget


class MasterSpeech(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadMasterSpeech",
            display_name="Master Speech",
            category="Talking Head/speech",
            description=(
                "Brings speech of any node to broadcast level: hiss and sharp s tamed, one loudness, peaks limited. "
                "Every stage can be off. Not for music: the sibilant stages are made for voices."
            ),
            inputs=[
                io.Audio.Input("audio", tooltip="Speech, mono or stereo, one clip, 8 to 192 kHz."),
                io.Float.Input(
                    "target_lufs",
                    default=_DEFAULT.target_lufs,
                    min=-50.0,
                    max=0.0,
                    step=0.5,
                    tooltip="Loudness, -50 to -5 LUFS. -16 is usual online, -23 (EBU R128) or -24 on air. 0 leaves it.",
                ),
                io.Float.Input(
                    "ceiling_dbtp",
                    default=_DEFAULT.ceiling_dbtp,
                    min=-20.0,
                    max=0.0,
                    step=0.1,
                    tooltip="True peaks, those between the samples too, stay below this, in dBTP. 0 is no limiter.",
                ),
                io.Float.Input(
                    "deess_db",
                    default=_DEFAULT.deess_db,
                    min=0.0,
                    max=24.0,
                    step=0.5,
                    tooltip="The most that 4.8-8.2 kHz goes down where an s is too sharp, in dB. 0 is off.",
                ),
                io.Float.Input(
                    "room_tone_dbfs",
                    default=_DEFAULT.room_tone_dbfs,
                    min=-90.0,
                    max=0.0,
                    step=1.0,
                    tooltip=(
                        "Soft noise under all of it, so that pauses are no dead silence: its level, -90 to -30 dBFS. 0 is off."
                    ),
                ),
                advanced(
                    io.Float.Input(
                        "lowpass_hz",
                        default=_DEFAULT.lowpass_hz,
                        min=0.0,
                        max=96000.0,
                        step=100.0,
                        tooltip="What lies above is filtered out: hiss of the voice's network, 1000 to 96000 Hz. 0 is off.",
                    )
                ),
                advanced(
                    io.Float.Input(
                        "fricative_ms",
                        default=_DEFAULT.fricative_s * 1000,
                        min=0.0,
                        max=500.0,
                        step=5.0,
                        tooltip="What stays of a long s in front of a pause, 20 to 500 ms, before 25 ms of release. 0 is off.",
                    )
                ),
                io.Float.Input(
                    "duck_db",
                    default=_DEFAULT.duck_db,
                    min=0.0,
                    max=60.0,
                    step=1.0,
                    tooltip="How far second_audio goes down while the first one speaks, in dB. 0 mixes both as they are.",
                ),
                advanced(
                    io.Boolean.Input(
                        "clean_ends",
                        default=True,
                        tooltip=(
                            "The sound starts and ends at a zero crossing: at most 1.5 ms of each end are silenced, against "
                            "clicks. Not with second_audio."
                        ),
                    ),
                ),
                io.Audio.Input(
                    "second_audio",
                    optional=True,
                    tooltip=(
                        "A second voice or an original sound, mixed under the first one from the same start and ducked "
                        "while it speaks."
                    ),
                ),
            ],
            outputs=[
                io.Audio.Output("AUDIO"),
                io.Image.Output("PICTURE", display_name="picture"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def validate_inputs(
        cls, target_lufs=None, ceiling_dbtp=None, deess_db=None, room_tone_dbfs=None, lowpass_hz=None, fricative_ms=None
    ) -> bool | str:  # fmt: skip
        try:
            master_options(target_lufs, ceiling_dbtp, deess_db, room_tone_dbfs, lowpass_hz, fricative_ms)
        except ValueError as e:
            return f"{e}, or 0 for off"
        return True

    @classmethod
    def execute(cls, audio, *, second_audio=None, **stages) -> io.NodeOutput:
        from .master import master

        options, report = master_options(**stages), Report()
        samples, rate = voice_samples(audio, "audio", report)
        other = None
        if second_audio is not None:
            other, its_rate = voice_samples(second_audio, "second_audio", report)
            other = at_rate(other, its_rate, rate, report)
        made = master(samples, rate, options, report, other)
        picture = torch.from_numpy(made.picture()).float()[None] / 255
        sound = {"waveform": torch.from_numpy(made.samples)[None], "sample_rate": made.sample_rate}
        return io.NodeOutput(sound, picture, report.text())


def master_options(
    target_lufs: float | None = None,
    ceiling_dbtp: float | None = None,
    deess_db: float | None = None,
    room_tone_dbfs: float | None = None,
    lowpass_hz: float | None = None,
    fricative_ms: float | None = None,
    duck_db: float | None = None,
    clean_ends: bool = True,
) -> MasterOptions:
    """Return the options of the widgets, 0 being off; a None (a wired widget before the run) stands for the default."""
    stages = {
        "target_lufs": target_lufs,
        "ceiling_dbtp": ceiling_dbtp,
        "deess_db": deess_db,
        "room_tone_dbfs": room_tone_dbfs,
        "lowpass_hz": lowpass_hz,
        "fricative_s": None if fricative_ms is None else fricative_ms / 1000,
        "duck_db": duck_db,
    }
    given = {name: value or None for name, value in stages.items() if value is not None}
    return MasterOptions(**given, **({} if clean_ends else {"join_reach_s": None}))


def voice_samples(audio: object, socket: str, report: Report) -> tuple[np.ndarray, int]:
    """Return (float32 (1 or 2, n), Hz) of an AUDIO; ValueError naming the socket for a batch, or more channels."""
    try:
        clip = from_comfy(audio)
    except ValueError as e:
        raise ValueError(f"{socket}: {e}") from e
    if clip.channels > 2:
        raise ValueError(
            f"{socket} has {clip.channels} channels; mastering takes mono or stereo, so mix it down first"
        )
    for note in clip.notes:
        report.warn(f"{socket}: {note}")
    return clip.samples, clip.sample_rate


def at_rate(samples: np.ndarray, its_rate: int, rate: int, report: Report) -> np.ndarray:
    """Return (channels, n) samples of `its_rate` Hz at `rate` Hz (soxr HQ); at the same rate as they are."""
    if its_rate == rate:
        return samples
    report.fact("second_audio", f"brought from {its_rate} to {rate} Hz")
    channels = (MemoryAudio(channel, its_rate, "second_audio") for channel in samples)
    return np.stack([np.concatenate(list(mono_blocks(c, rate, report))) for c in channels])


NODES = [MasterSpeech]
