"""Write the pack's model.safetensors and config.json from a training checkpoint."""

import argparse
from pathlib import Path

from . import nets as store


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default=store.ROOT / "nodes" / "musetalk" / "embedded")
    args = parser.parse_args(argv)
    nets = store.new_nets()
    loaded = store.load(args.checkpoint, {"whisper": nets.whisper, "unet": nets.unet, "vae": nets.vae})
    if len(loaded) != 3:
        raise SystemExit(f"{args.checkpoint} has only {loaded}")
    store.pack_module("nodes.musetalk.model").save_nets(nets, args.out)
    size = (args.out / "model.safetensors").stat().st_size
    print(f"{args.out.name}/model.safetensors {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
