"""Fold the training forms into the official ones and write nodes/ditto/embedded.

Angles: one layer that gives three angles becomes three heads of 66 logits (`space.angle_heads`). LMDM: the reduced, scaled
motion (70 numbers) becomes the motion vector (265) in the input projection and the final layer.
"""

import argparse
import json
from pathlib import Path

import torch
from demo import nets as store
from torch import Tensor

from . import motion_stage, space
from .picture_stage import new_nets

FOLDER = store.ROOT / "nodes" / "ditto" / "embedded"


def reduction() -> tuple[Tensor, Tensor]:
    """Linear maps: motion vector (265) -> reduced and scaled (70, 265), and back (265, 70)."""
    std = motion_stage.spreads().double()
    slope = space.bins("cpu").double() / space.VARIANCE
    forth, back = torch.zeros(70, 265).double(), torch.zeros(265, 70).double()
    forth[0, 0], back[0, 0] = 1, 1
    for i in range(3):
        columns = slice(1 + 66 * i, 67 + 66 * i)
        forth[1 + i, columns] = slope / slope.square().sum()
        back[columns, 1 + i] = slope
    for i in range(3 + 63):
        forth[4 + i, 199 + i] = back[199 + i, 4 + i] = 1
    return forth / std[:, None], back * std


def official_lmdm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The LMDM's weights in the form of the embedded config."""
    forth, back = reduction()
    squeeze = (1 / (1 + motion_stage.noise_spreads().double() ** 2).sqrt())
    weight = state["input_projection.weight"].double()
    noisy, frame = (weight[:, :70] * squeeze) @ forth, weight[:, 70:] @ forth
    out = dict(state)
    out["input_projection.weight"] = torch.cat([noisy, frame], 1).float()
    out["final_layer.weight"] = (back @ state["final_layer.weight"].double()).float()
    out["final_layer.bias"] = (back @ state["final_layer.bias"].double()).float()
    return out


def read_picture(path: Path) -> dict[str, Tensor]:
    """State of the image networks of a checkpoint of the stage `picture`."""
    nets, angles = new_nets()
    store.load(path, {"nets": nets, "angles": angles})
    for name, (weight, bias) in zip(("pitch", "yaw", "roll"), space.angle_heads(angles), strict=True):
        head = getattr(nets.motion.detector, f"fc_{name}")
        head.weight.data, head.bias.data = weight, bias
    return nets.state_dict()


def read_motion(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """States of the speech encoder and the LMDM of a checkpoint of the stage `motion`."""
    from safetensors.torch import load_file

    state = load_file(str(path))
    parts = [{k.removeprefix(f"{part}."): v.float() for k, v in state.items() if k.startswith(f"{part}.")}
             for part in ("speech", "lmdm")]
    return parts[0], official_lmdm(parts[1])


def main(argv: list[str] | None = None) -> None:
    from safetensors.torch import save_file

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("motion", type=Path)
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--guidance", type=float)
    args = parser.parse_args(argv)
    speech, lmdm = read_motion(args.motion)
    parts = {"nets": read_picture(args.picture), "lmdm": lmdm, "speech": speech}
    state = {f"{name}.{k}": v.to(torch.float16 if v.is_floating_point() else v.dtype).contiguous()
             for name, part in parts.items() for k, v in part.items()}
    configs = {
        "name": "embedded",
        "nets": store.pack_module("nodes.ditto.config").EMBEDDED.to_dict(),
        "lmdm": store.pack_module("nodes.ditto.lmdm").EMBEDDED.to_dict(),
        "speech": store.pack_module("nodes.ditto.speech_encoder").SpeechEncoderConfig().to_dict(),
    }
    if args.guidance is not None:
        configs["lmdm"]["guidance"] = args.guidance
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "model.safetensors"
    save_file(state, str(path), metadata={"format": "pt", "model": "embedded"})
    (args.out / "config.json").write_text(json.dumps(configs, indent=2) + "\n", encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
