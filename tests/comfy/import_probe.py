"""Run by test_import.py in a process of its own: what does importing the pack cost and change?

python import_probe.py TREE BASE PACK       prints one line of JSON
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from in_process import boot, load_pack, node_classes


def state() -> dict:
    """Return everything global that a pack might be tempted to touch."""
    import torch

    return {
        "environment": dict(os.environ),
        "working directory": os.getcwd(),
        "temporary directory": tempfile.gettempdir(),
        "sys.path": list(sys.path),
        "sys.meta_path": [repr(f) for f in sys.meta_path],
        "stdout, stderr": [id(sys.stdout), id(sys.stderr)],
        "excepthook": id(sys.excepthook),
        "signals": {s.name: repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)},
        "threads": sorted(t.name for t in threading.enumerate()),
        "log": [logging.getLogger().level, len(logging.getLogger().handlers)],
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch dtype and device": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "torch grad and inference": [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        "torch determinism": [
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
        ],
        "torch precision": [
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
        ],
        "torch random state": hash(bytes(torch.get_rng_state().tolist())),
    }


def main() -> None:
    tree, base, pack = (Path(a) for a in sys.argv[1:])
    boot(tree, base)
    before, modules = state(), set(sys.modules)
    files = sorted(str(p) for p in base.rglob("*"))
    # A collection of all that ComfyUI has loaded takes 0.3 s and falls into this window or not.
    gc.collect()
    gc.disable()
    began, wall = time.process_time(), time.perf_counter()
    nodes = node_classes(load_pack(pack))
    seconds, wall = time.process_time() - began, time.perf_counter() - wall
    gc.enable()
    after = state()
    new = {m.partition(".")[0] for m in set(sys.modules) - modules if not m.startswith(str(pack.parent))}
    answer = {
        "seconds": seconds,
        "wall": wall,
        "nodes": sorted(nodes),
        "changed": {k: [before[k], after[k]] for k in before if before[k] != after[k]},
        "files": [f for f in map(str, base.rglob("*")) if f not in files],
        "modules": sorted(m for m in new if m not in sys.stdlib_module_names),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
