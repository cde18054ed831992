"""Make the embedded engine: speech, training, evaluation, demo presenters. See tools/README.md for the commands."""

import importlib
import sys
from pathlib import Path

STEPS = {
    "speech": "synthesise speech shards (needs the speech environment)",
    "farm": "speak with Kokoro on many cores (prepare here, run on the lent machine)",
    "corpus": "pack the shards of a split into one stream",
    "train": "train a stage on pictures rendered on the fly",
    "settle": "short last stage on a CPU: shut as soon as the sound stops",
    "evaluate": "measure a checkpoint on the validation or test set",
    "export": "write model.safetensors and config.json of the pack from a checkpoint",
    "golden": "the small clips of tests/golden/embedded",
    "assets": "render the demo presenters and their boxes",
    "wardrobe": "render the clip of the wardrobe graphs and its masks",
}


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        lines = "\n".join(f"  {name:10s}{text}" for name, text in STEPS.items())
        raise SystemExit(f"usage: train_demo.py STEP [options]\n{lines}")
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    importlib.import_module(f"demo.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
