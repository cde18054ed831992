"""`talkinghead bench --live`: time to the first frame, steady speed by push size, memory over time."""

from __future__ import annotations

import argparse
import json
import sys


def bench_live(
    args: argparse.Namespace, device, precisions: tuple[str, ...], batches: tuple[int, ...]
) -> int:
    """Run and print the live bench of args.engine on torch `device`; of precisions the first one counts."""
    from ..nodes.core.bench_live import LiveOptions, live_table
    from ..nodes.core.images import parse_size

    if args.engine == "ditto":
        from ..nodes.ditto.bench_live import run_live
    else:
        from ..nodes.musetalk.bench_live import run_live

    options = LiveOptions(
        device,
        size=args.size or ("full" if device.type == "cuda" else "embedded"),
        precision=precisions[0],
        batches=batches or (8,),
        frame=parse_size(args.frame),
        repeats=4 if args.quick else 12,
        seconds=4 if args.quick else 20,
        memory_seconds=12 if args.quick else 120 if device.type == "cuda" else 60,
        rest=args.rest,
    )
    facts = run_live(options, lambda line: print(line, file=sys.stderr, flush=True))
    for name, value in facts["machine"].items():
        print(f"{name}: {value}")
    for name, value in facts["engines"].items():
        print(f"{name}: {value}")
    for warning in facts["warnings"]:
        print(f"warning: {warning}")
    print(f"cold, from the call to the first chunk on the host: {facts['cold_ms']} ms")
    print(live_table(facts["rows"]))
    if args.engine == "musetalk":
        facts["distance"] = _distance()
        print(
            "live features against the whole file's, embedded model, bundled sentence: " + facts["distance"]
        )
    for sample in facts["memory"]:
        print("memory: " + ", ".join(f"{k} {v}" for k, v in sample.items()))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0


def _distance() -> str:
    from ..nodes.core.frames import RunContext
    from ..nodes.musetalk.handle import MuseTalkModel
    from ..nodes.musetalk.live_distance import feature_distance
    from ..nodes.tts.engines import SAMPLE_VOICE, speak

    return str(feature_distance(RunContext(), MuseTalkModel(), speak("", SAMPLE_VOICE)))
