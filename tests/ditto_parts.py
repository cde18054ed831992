"""Small Ditto networks with seeded weights, and the official file layouts they can be saved in."""

from __future__ import annotations

from pathlib import Path

import torch

from talkinghead.nodes.ditto.config import (
    AppearanceConfig,
    DecoderConfig,
    DittoConfig,
    MotionConfig,
    StitchConfig,
    WarpConfig,
)
from talkinghead.nodes.ditto.decoder import official_shapes
from talkinghead.nodes.ditto.networks import NETWORKS, DittoNets, build_nets
from talkinghead.nodes.ditto.parity_recipe import recipe_state

TINY = DittoConfig(
    name="tiny",
    crop_size=64,
    appearance=AppearanceConfig((8, 16, 16), volume_channels=4, volume_depth=4, n_res_blocks=1),
    motion=MotionConfig(depths=(1, 1, 1, 1), dims=(8, 16, 16, 32), n_keypoints=5),
    warp=WarpConfig(
        n_keypoints=5,
        volume_channels=4,
        volume_depth=4,
        volume_size=16,
        compressed_channels=2,
        hourglass_channels=(4, 8, 16),
        out_channels=16,
        mask_kernel=3,
    ),
    decoder=DecoderConfig(in_channels=16, channels=24, n_middle=1, up_channels=(16, 8), hidden_channels=8),
    stitch=StitchConfig(n_keypoints=5, hidden_channels=(16,)),
)


def official_states(config: DittoConfig = TINY) -> dict[str, dict[str, torch.Tensor]]:
    """Return network name -> state dict under the official keys, recipe weights."""
    nets = DittoNets(config)
    states = {}
    for name, (part, _) in NETWORKS.items():
        network = getattr(nets, part)
        shapes = {key: tuple(value.shape) for key, value in network.state_dict().items()}
        states[name] = recipe_state(name, official_shapes(network) if name == "decoder" else shapes)
    return states


def tiny_nets(dtype: torch.dtype = torch.float32) -> DittoNets:
    """Return the small networks with recipe weights, ready for inference."""
    from talkinghead.nodes.ditto.decoder import fold_spectral_norm

    states = official_states()
    states["decoder"] = fold_spectral_norm(states["decoder"])
    whole = {f"{NETWORKS[n][0]}.{key}": value for n, state in states.items() for key, value in state.items()}
    return build_nets(TINY, whole, "recipe", dtype)


def save_official(folder: Path, states: dict[str, dict[str, torch.Tensor]]) -> None:
    """Write the files as upstream has them, and a stand-in for the motion diffusion's."""
    folder.mkdir(parents=True)
    for name, state in states.items():
        content = state
        if name == "stitch_network":
            wrapped = {f"module.{key}": value for key, value in state.items()}
            content = {
                "retarget_mouth": {"module.mlp.0.weight": torch.zeros(2, 2)},
                "retarget_shoulder": wrapped,
            }
        torch.save(content, folder / f"{name}.pth")
    torch.save({"model_state_dict": {"final_layer.bias": torch.zeros(2)}}, folder / "lmdm_v0.4_hubert.pth")


def inputs(config: DittoConfig, batch: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return `batch` different items of every input: image, volume, kp_source, kp_driving, features."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, generator=generator)

    warp = config.warp
    kp_source = 0.35 * normal(warp.n_keypoints, 3)
    return {
        "image": torch.rand(batch, 3, config.crop_size, config.crop_size, generator=generator),
        "volume": normal(warp.volume_channels, warp.volume_depth, warp.volume_size, warp.volume_size),
        "kp_source": kp_source,
        "kp_driving": kp_source + 0.2 * normal(warp.n_keypoints, 3),
        "features": normal(config.decoder.in_channels, warp.volume_size, warp.volume_size),
    }
