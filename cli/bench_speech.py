"""`talkinghead bench --speech`: text rules, voice, mastering, and what stays in memory."""

from __future__ import annotations

import argparse


def bench_speech(args: argparse.Namespace) -> dict[str, object]:
    """Run the bench of speech, print what it finds as it finds it, and return its facts."""
    from ..nodes.tts.bench import SpeechBenchOptions, run_speech

    quick = {"visits": 2, "sentences": 20, "voice_files": 6} if args.quick else {}
    facts = run_speech(SpeechBenchOptions(**quick), lambda line: print(line, flush=True))
    for name, value in facts["machine"].items():
        print(f"{name}: {value}")
    return facts
