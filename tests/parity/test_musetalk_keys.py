"""State-dict keys, their order and shapes against the manifests; the older VAE file formats."""

from __future__ import annotations

import pytest
import torch
from parity.recipe import ATOL_FP32, golden, manifest, max_error, recipe_state, recipe_tensor, reduced_config

from talkinghead.nodes.musetalk.config import OFFICIAL, UNetConfig, VAEConfig
from talkinghead.nodes.musetalk.model import load_strict, on_meta
from talkinghead.nodes.musetalk.unet import UNet2DCondition
from talkinghead.nodes.musetalk.vae import AutoencoderKL, normalize_vae_keys
from talkinghead.nodes.musetalk.whisper import WhisperEncoder

CASES = {
    "unet": (UNet2DCondition, OFFICIAL.unet),
    "unet_reduced": (UNet2DCondition, reduced_config().unet),
    "vae": (AutoencoderKL, OFFICIAL.vae),
    "whisper_encoder": (WhisperEncoder, OFFICIAL.whisper),
}


@pytest.mark.parametrize("name", CASES)
def test_keys_order_and_shapes(name):
    module = on_meta(*CASES[name])
    described = manifest(name)
    own = [(key, list(value.shape)) for key, value in module.state_dict().items()]
    assert own == [(entry["key"], entry["shape"]) for entry in described["keys"]]
    assert sum(p.numel() for p in module.parameters()) == described["n_parameters"]
    assert all(p.is_meta for p in module.parameters())


def test_published_configs_are_the_defaults():
    assert UNetConfig.from_dict(manifest("unet")["config"]) == OFFICIAL.unet
    assert VAEConfig.from_dict(manifest("vae")["config"]) == OFFICIAL.vae


@pytest.mark.parametrize("name", ["unet_reduced", "vae", "whisper_encoder"])
def test_recipe_reproduces_the_manifest(name):
    for entry in manifest(name)["keys"]:
        weight = recipe_tensor(entry["key"], entry["shape"])
        assert weight.flatten()[0].item() == pytest.approx(entry["recipe_first"], abs=3e-7)
        assert weight.double().abs().sum().item() == pytest.approx(entry["recipe_abs_sum"], rel=1e-6)


def renamed(state: dict, layout: str) -> dict:
    """The state dict as an older file would hold it: manifest names of the full VAE fit the reduced one too."""
    out = {}
    for entry in manifest("vae")["keys"]:
        value = state[entry["key"]]
        if layout == "legacy":
            out[entry.get("legacy_key", entry["key"])] = value
        else:
            out[entry["ldm_key"]] = value[:, :, None, None] if "ldm_shape" in entry else value
    return out


@pytest.mark.parametrize(("layout", "prefix"), [("legacy", ""), ("ldm", ""), ("ldm", "first_stage_model.")])
def test_older_vae_files_decode_the_same(layout, prefix):
    vae = on_meta(AutoencoderKL, reduced_config().vae)
    state = recipe_state(vae)
    stored = {prefix + key: value for key, value in renamed(state, layout).items()}
    assert set(stored) != set(state)
    if layout == "ldm":
        stored["loss.logvar" if not prefix else "model.diffusion_model.out.0.bias"] = torch.zeros(1)
    restored = normalize_vae_keys(stored)
    assert list(restored) == list(state)
    load_strict(vae, restored, "older file")
    data = golden("vae_reduced")
    with torch.no_grad():
        assert max_error(vae.decode(data["z_in"]), data["decoded"]) <= ATOL_FP32


def test_full_vae_names_and_shapes_from_ldm():
    entries = manifest("vae")["keys"]
    stored = {e["ldm_key"]: torch.empty(e.get("ldm_shape", e["shape"]), device="meta") for e in entries}
    restored = normalize_vae_keys(stored)
    assert [(k, list(v.shape)) for k, v in restored.items()] == [(e["key"], e["shape"]) for e in entries]


def test_modern_vae_keys_stay_and_unknown_ones_are_kept_for_the_strict_load():
    state = recipe_state(on_meta(AutoencoderKL, reduced_config().vae))
    assert list(normalize_vae_keys({**state, "stranger": torch.zeros(1)})) == [*state, "stranger"]
