"""Command speak: a text to a sound file, as it is or through the text rules, tags, voices and mastering."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .common import model_root, print_facts
from .script import read_script

if TYPE_CHECKING:
    from ..nodes.core.audio import MemoryAudio
    from ..nodes.core.frames import RunContext
    from ..nodes.core.report import Report

DEMO_TEXT = "Good evening. I was made on this very computer, and every word you hear moves my lips."


def voice_options() -> argparse.ArgumentParser:
    """Return the options of a voice, for every command that speaks."""
    speech = argparse.ArgumentParser(add_help=False)
    speech.add_argument("--voice", help="a voice of `talkinghead speak --list` (default: piper: joe)")
    speech.add_argument("--speed", type=float, default=1.0, help="0.5 to 2 times the usual pace")
    speech.add_argument("--seed", type=int, default=0)
    return speech


def add_commands(commands, common: argparse.ArgumentParser) -> None:
    speak = commands.add_parser("speak", parents=[common, voice_options()], help="text to a sound file")
    what = speak.add_mutually_exclusive_group()
    what.add_argument("--text")
    what.add_argument(
        "--text-file",
        metavar="FILE",
        help="a text file with the script (UTF-8 best), or - for standard input",
    )
    speak.add_argument("--out", type=Path, help="a .wav or .flac file")
    speak.add_argument("--list", action="store_true", help="list the voices")
    speak.add_argument(
        "--normalize",
        nargs="?",
        const="auto",
        metavar="LANGUAGE",
        help="say numbers, symbols and acronyms as a broadcaster would, and follow tags: auto, en, en-GB, es, es-MX, ... "
        "(default auto)",
    )
    speak.add_argument(
        "--wording",
        default="",
        metavar="RULES",
        help="with --normalize, rules that change the wording: U5 carries a lone exclamation in a phrase, U6 takes the "
        "marks from quotations, U7 puts a noun before foreign brands; with commas",
    )
    speak.add_argument(
        "--glossary",
        type=Path,
        metavar="FILE",
        help="with --normalize, a JSON of names and how they are said; it wins over the pack's own",
    )
    speak.add_argument(
        "--show-changes", action="store_true", help="with --normalize: print all that it changed"
    )
    speak.add_argument(
        "--tags",
        action="store_true",
        help="follow [pause:0.5], [rate:slow], ... without --normalize, which does too",
    )
    speak.add_argument(
        "--dialogue",
        metavar='"A=VOICE,B=VOICE"',
        help="voices for the speakers of [speaker:A]; includes --tags",
    )
    speak.add_argument(
        "--sounds",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where [sfx:...] files are (default: here)",
    )
    speak.add_argument(
        "--master",
        nargs="?",
        const="-16",
        metavar="LUFS",
        help="clean the sound and bring it to this loudness, -50 to -5 LUFS (default -16); off or 0 cleans it and leaves "
        "the loudness",
    )
    speak.set_defaults(run=_speak)


def spoken(args: argparse.Namespace, ctx: RunContext) -> MemoryAudio:
    """Return --text in the chosen voice, as one level take."""
    from ..nodes.tts.engines import speak

    with ctx.report.timed("speech synthesis"):
        return speak(args.text, _voice(args), args.speed, args.seed, ctx.report, [model_root(args) / "tts"])


def _voice(args: argparse.Namespace) -> str:
    from ..nodes.tts.engines import JOE, default_voice

    # The recording is for the demo's own words only: another text must be spoken or refused.
    return args.voice or (default_voice() if args.text == DEMO_TEXT else JOE)


def _speak(args: argparse.Namespace) -> int:
    from ..nodes.core.frames import RunContext
    from ..nodes.tts.engines import list_voices

    if args.list:
        print_facts(args, {"voices": list_voices([model_root(args) / "tts"])})
        return 0
    if args.text_file is not None:
        args.text, warning = read_script(args.text_file)
    if not args.text or not args.out:
        raise ValueError("speak needs --text or --text-file, and --out (or --list)")
    if args.out.suffix.lower() not in (".wav", ".flac") or args.out.is_dir():
        raise ValueError(f"--out {str(args.out)!r} must be a file ending in .wav or .flac")
    for flag in ("show_changes", "wording", "glossary"):
        if getattr(args, flag) and args.normalize is None:
            raise ValueError(
                f"--{flag.replace('_', '-')} goes with --normalize: nothing else changes the text"
            )
    _check_language(args.normalize)
    ctx = RunContext()
    if args.text_file is not None and warning:
        ctx.report.warn(warning)
    made_up = args.normalize or args.tags or args.dialogue is not None or args.master is not None
    audio, facts = _performed(args, ctx) if made_up else (spoken(args, ctx), {})
    _write(args.out, audio)
    path, seconds = str(args.out.resolve()), round(float(audio.seconds), 3)
    print_facts(args, {"path": path, "duration_s": seconds, **facts, "report": ctx.report.as_dict()})
    return 0


def _performed(args: argparse.Namespace, ctx: RunContext) -> tuple[MemoryAudio, dict]:
    """Return --text as the options want it, and what there is to tell of it."""
    from ..nodes.tts.glossary import load_glossary
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
        wording=[rule.strip().upper() for rule in args.wording.split(",") if rule.strip()],
        glossary=load_glossary([args.glossary] if args.glossary else []),
        tags=tags,
        n_changes=None if args.show_changes else 0,
        sounds=_sounds(sounds_in(args.text) if tags else (), args.sounds),
    )
    mastering = None if args.master is None else _mastering(args.master)
    audio = join_takes(takes(args.text, options, [model_root(args) / "tts"], ctx.report, ctx))
    if mastering is not None:
        audio = _mastered(audio, mastering, ctx.report)
    return audio, dict(ctx.report.facts)


def _check_language(tag: str | None) -> None:
    from ..nodes.tts.languages import find_locale

    if tag not in (None, "auto"):
        find_locale(tag)


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


def _write(out: Path, audio: MemoryAudio) -> None:
    import soundfile

    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".part-{os.getpid()}{out.suffix}")
    try:
        soundfile.write(part, audio.samples.T, audio.sample_rate)
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
