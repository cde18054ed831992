"""`talkinghead bench --wardrobe`: milliseconds a frame of every stage, and the memory of a clip."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict


def bench_wardrobe(args: argparse.Namespace) -> dict[str, object]:
    """Run and print the wardrobe's bench on this CPU. Return its facts."""
    import torch

    from ..nodes.core.bench import machine_facts
    from ..nodes.wardrobe.bench import CHAIN, CROP, FULL, LIMIT_MB, LIMIT_MS, run_memory, run_speed

    facts: dict[str, object] = {"machine": machine_facts(torch.device("cpu"))}
    for name, value in facts["machine"].items():
        print(f"{name}: {value}")
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    if load:
        facts["load"] = [round(v, 2) for v in load]
        print(f"load of the last 1, 5, 15 minutes: {facts['load']}")
    frames = 24 if args.quick else 175
    try:
        memory = run_memory(frames)
    except OSError as e:
        memory = None
        print(f"memory: not measured, {e}")
    if memory:
        print(f"memory, {frames} frames of {FULL[0]}x{FULL[1]} as FRAMES, MB")
        print(f"{'stage':26}{'gives':>8}{'own':>8}")
        for row in memory["stages"]:
            print(f"{row.stage:26}{row.made_mb:8}{row.own_mb:8}")
        print(
            f"own memory at most {memory['own_mb']} MB (limit {LIMIT_MB}); with all outputs {memory['peak_mb']} MB"
        )
        facts["memory"] = memory | {"frames": frames, "stages": [asdict(s) for s in memory["stages"]]}
    speed = facts["speed"] = run_speed(5 if args.quick else 25)
    print(f"crop {CROP[0]}x{CROP[1]} in {FULL[0]}x{FULL[1]}, ms a frame: best, median")
    for stage, (best, median) in speed["ms"].items():
        print(f"{stage:26}{best:8.2f}{median:8.2f}")
    print(
        f"{' -> '.join(CHAIN)}: {speed['chain_ms']} ms (limit {LIMIT_MS:g}), {speed['chain_ratio']} times a plain lerp of "
        f"the crop ({speed['lerp_ms']} ms)"
    )
    return facts
