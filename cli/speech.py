"""Speech for every command that speaks: its options, and the sound they ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .common import model_root
from .script import read_script

if TYPE_CHECKING:
    from ..nodes.core.audio import AudioClip, MemoryAudio
    from ..nodes.core.frames import RunContext
    from ..nodes.core.report import Report

DEMO_TEXT = "Good evening. I was made on this very computer, and every word you hear moves my lips."
MIN_RATE, MAX_RATE = 8000, 192000


def text_options(group, default: str | None = None) -> None:
    """Add --text and --text-file to a group of which one is given."""
    group.add_argument("--text", default=default, help="text to speak (needs the tts extra)")
    group.add_argument(
        "--text-file",
        metavar="FILE",
        help="a text file with the script (UTF-8 best), or - for standard input",
    )


def speech_options() -> argparse.ArgumentParser:
    """Return the options of how a text is spoken."""
    speech = argparse.ArgumentParser(add_help=False)
    speech.add_argument("--voice", help="a voice of `talkinghead speak --list` (default: piper: joe)")
    speech.add_argument("--speed", type=float, default=1.0, help="0.5 to 2 times the usual pace")
    speech.add_argument("--seed", type=int, default=0)
    speech.add_argument(
        "--normalize",
        nargs="?",
        const="auto",
        metavar="LANGUAGE",
        help="say numbers, symbols and acronyms as a broadcaster would, and follow tags: auto, en, en-GB, es, es-MX, ... "
        "(default auto)",
    )
    speech.add_argument(
        "--wording",
        default="",
        metavar="RULES",
        help="with --normalize, rules that change the wording: U5 carries a lone exclamation in a phrase, U6 takes the "
        "marks from quotations, U7 puts a noun before foreign brands; with commas",
    )
    speech.add_argument(
        "--glossary",
        type=Path,
        metavar="FILE",
        help="with --normalize, a JSON of names and how they are said; it wins over the pack's own",
    )
    speech.add_argument(
        "--show-changes", action="store_true", help="with --normalize: print all that it changed"
    )
    speech.add_argument(
        "--tags",
        action="store_true",
        help="follow [pause:0.5], [rate:slow], ... without --normalize, which does too",
    )
    speech.add_argument(
        "--dialogue",
        metavar='"A=VOICE,B=VOICE"',
        help="voices for the speakers of [speaker:A]; includes --tags",
    )
    speech.add_argument(
        "--sounds",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where [sfx:...] files are (default: here)",
    )
    speech.add_argument(
        "--master",
        nargs="?",
        const="-16",
        metavar="LUFS",
        help="clean the sound and bring it to this loudness, -50 to -5 LUFS (default -16); off or 0 cleans it and leaves "
        "the loudness",
    )
    speech.add_argument(
        "--rate",
        type=int,
        metavar="HZ",
        help="sample rate of the sound, 48000 for air (default: the voice's own)",
    )
    return speech


def sound_of(args: argparse.Namespace, ctx: RunContext) -> AudioClip:
    """Return what is heard: --audio, mastered and at the rate asked for, or the text spoken."""
    if args.audio is None:
        return spoken(args, ctx)
    from ..nodes.core.audio import MemoryAudio, open_audio

    for flag in ("normalize", "tags", "dialogue", "voice"):
        if getattr(args, flag) not in (None, False):
            raise ValueError(f"--{flag} is for a text; --audio is a sound already")
    _check(args)
    mastering = None if args.master is None else _mastering(args.master)
    clip = open_audio(args.audio)
    if mastering is None and args.rate is None:
        return clip
    samples = np.concatenate(list(clip.blocks(clip.sample_rate)), axis=1)
    audio = MemoryAudio(samples, clip.sample_rate, clip.name)
    if mastering is not None:
        audio = _mastered(audio, mastering, ctx.report)
    return audio if args.rate is None else _at_rate(audio, args.rate)


def spoken(args: argparse.Namespace, ctx: RunContext) -> MemoryAudio:
    """Return the text in the voice and the way that the options ask for; facts and warnings go to the report."""
    from ..nodes.tts.engines import speak

    read_text(args, ctx.report)
    _check(args)
    with ctx.report.timed("speech synthesis"):
        if args.normalize or args.tags or args.dialogue is not None or args.master is not None:
            audio = _performed(args, ctx)
        else:
            roots = [model_root(args) / "tts"]
            audio = speak(args.text, _voice(args), args.speed, args.seed, ctx.report, roots)
    return audio if args.rate is None else _at_rate(audio, args.rate)


def read_text(args: argparse.Namespace, report: Report) -> None:
    """Put the script of --text-file into args.text; what was guessed of its encoding is warned of."""
    if args.text_file is not None:
        args.text, warning = read_script(args.text_file)
        args.text_file = None
        if warning:
            report.warn(warning)


def _check(args: argparse.Namespace) -> None:
    from ..nodes.tts.languages import find_locale

    for flag in ("show_changes", "wording", "glossary"):
        if getattr(args, flag) and args.normalize is None:
            raise ValueError(
                f"--{flag.replace('_', '-')} goes with --normalize: nothing else changes the text"
            )
    if args.normalize not in (None, "auto"):
        find_locale(args.normalize)
    if args.rate is not None and not MIN_RATE <= args.rate <= MAX_RATE:
        raise ValueError(f"--rate {args.rate} is outside {MIN_RATE}..{MAX_RATE} Hz; 48000 is usual on air")


def _at_rate(audio: MemoryAudio, rate: int) -> MemoryAudio:
    import soxr

    from ..nodes.core.audio import MemoryAudio

    return MemoryAudio(soxr.resample(audio.samples.T, audio.sample_rate, rate, "VHQ").T, rate, audio.name)


def _voice(args: argparse.Namespace) -> str:
    from ..nodes.tts.engines import JOE, default_voice

    # The recording is for the demo's own words only: another text must be spoken or refused.
    return args.voice or (default_voice() if args.text == DEMO_TEXT else JOE)


def _performed(args: argparse.Namespace, ctx: RunContext) -> MemoryAudio:
    """Return args.text through text rules, tags, voices and mastering, as the options want it."""
    from ..nodes.tts.takes import SpeechOptions, join_takes, sounds_in, takes

    dialogue = _dialogue(args.dialogue)
    tags = args.tags or args.dialogue is not None or args.normalize is not None
    options = SpeechOptions(
        voice=_voice(args),
        voices=dialogue,
        speed=args.speed,
        seed=args.seed,
        normalize=args.normalize is not None,
        language=args.normalize or "auto",
        **text_rules(args),
        tags=tags,
        n_changes=None if args.show_changes else 0,
        sounds=_sounds(sounds_in(args.text) if tags else (), args.sounds),
    )
    mastering = None if args.master is None else _mastering(args.master)
    audio = join_takes(takes(args.text, options, [model_root(args) / "tts"], ctx.report, ctx))
    if mastering is not None:
        audio = _mastered(audio, mastering, ctx.report)
    return audio


def text_rules(args: argparse.Namespace) -> dict:
    """Return what --wording and --glossary say, as arguments of the text rules."""
    from ..nodes.tts.glossary import load_glossary

    wording = [rule.strip().upper() for rule in args.wording.split(",") if rule.strip()]
    return {"wording": wording, "glossary": load_glossary([args.glossary] if args.glossary else [])}


def _mastering(given: str):
    """Return the options of --master: what it says is a loudness, or off."""
    from ..nodes.tts.mastering.options import MasterOptions

    wrong = f"--master {given!r} is no loudness: give -50 to -5 LUFS (-16 online, -23 or -24 on air), or off"
    try:
        target = 0.0 if given.casefold() == "off" else float(given)
        return MasterOptions(target_lufs=target or None, pause_s=0.0, join_reach_s=None)
    except ValueError as e:
        raise ValueError(wrong) from e


def _mastered(audio: MemoryAudio, options, report: Report) -> MemoryAudio:
    from ..nodes.core.audio import MemoryAudio
    from ..nodes.tts.master import master

    done = master(audio.samples, audio.sample_rate, options, report)
    return MemoryAudio(done.samples, done.sample_rate, audio.name)


def _dialogue(given: str | None) -> dict[str, str]:
    """Return speaker -> voice of "A=piper: joe,B=espeak: es"."""
    voices: dict[str, str] = {}
    for part in (given or "").split(",") if given is not None else ():
        name, equals, voice = (p.strip() for p in part.partition("="))
        if not (name and equals and voice):
            raise ValueError(
                f'--dialogue {given!r}: {part.strip()!r} is not NAME=VOICE, as in "A=piper: joe,B=espeak: es"'
            )
        if ";" in voice:
            raise ValueError(f"--dialogue {given!r}: between two speakers goes a comma, not ';'")
        if name.casefold() in {n.casefold() for n in voices}:
            raise ValueError(f"--dialogue {given!r} has two voices for {name!r}")
        voices[name] = voice
    return voices


def _sounds(names: Iterable[str], folder: Path) -> dict:
    from ..nodes.core.audio import open_audio

    found = {}
    for name in names:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"[sfx:{name}] lies outside the folder of sounds; give a name without '..'")
        if not path.is_file():
            raise ValueError(f"[sfx:{name}]: no file {path}; give its folder with --sounds")
        found[name] = open_audio(path)
    return found
