"""Make the embedded Ditto engine: training, export, evaluation, golden clips. See tools/ditto_demo/README.md."""

import importlib
import sys
from pathlib import Path

STEPS = {
    "train": "train a stage: picture (appearance, motion extractor, warp, decoder, stitching) or motion (speech, LMDM)",
    "export": "write nodes/ditto/embedded from two checkpoints",
    "evaluate": "measure the engine on held-out speech, faces and voices",
    "golden": "the small clips of tests/golden/embedded_ditto",
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        lines = "\n".join(f"  {name:10s}{text}" for name, text in STEPS.items())
        raise SystemExit(f"usage: train_ditto.py STEP [options]\n{lines}")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    importlib.import_module(f"ditto_demo.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
