"""The official model at toy size, and its files in every form they come in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file

from talkinghead.nodes.musetalk.config import MuseTalkConfig, UNetConfig, VAEConfig, WhisperConfig
from talkinghead.nodes.musetalk.model import MuseTalkNets

GOLDEN = Path(__file__).parent / "golden" / "musetalk"
CROP = 32
SMALL = MuseTalkConfig(
    name="musetalkV15",
    whisper=WhisperConfig(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64),
    unet=UNetConfig(
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=2,
    ),
    vae=VAEConfig(block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4),
)


def make_state() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return {k: v.detach().clone() for k, v in MuseTalkNets(SMALL).state_dict().items()}


def part(state: dict, name: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}


def to_legacy(vae: dict) -> dict:
    names = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    rule = re.compile(r"(mid_block\.attentions\.0)\.(to_q|to_k|to_v|to_out\.0)\.")
    return {rule.sub(lambda m: f"{m[1]}.{names[m[2]]}.", k): v for k, v in vae.items()}


def to_ldm(vae: dict, prefix: str = "") -> dict:
    """The VAE of two levels and one layer under LDM's names, attention as 1x1 convolutions; written out by hand."""
    out = {}
    for key, value in vae.items():
        new = key.replace("conv_norm_out", "norm_out").replace(".conv_shortcut.", ".nin_shortcut.")
        new = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", new)
        new = new.replace("mid_block.attentions.0.group_norm", "mid.attn_1.norm")
        new = re.sub(r"mid_block\.attentions\.0\.to_([qkv])\.", r"mid.attn_1.\1.", new)
        new = new.replace("mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out")
        new = re.sub(r"down_blocks\.(\d)\.resnets\.(\d)", r"down.\1.block.\2", new)
        new = new.replace("down_blocks.0.downsamplers.0", "down.0.downsample")
        new = re.sub(r"up_blocks\.(\d)\.resnets\.(\d)", lambda m: f"up.{1 - int(m[1])}.block.{m[2]}", new)
        new = new.replace("up_blocks.0.upsamplers.0", "up.1.upsample")
        is_attention = re.search(r"attn_1\.(q|k|v|proj_out)\.weight$", new)
        out[prefix + new] = value[..., None, None] if is_attention else value
    return out


def to_openai(whisper: dict) -> dict:
    entries = json.loads((GOLDEN / "manifest_whisper_encoder.json").read_text())["keys"]
    names = {e["key"]: e["openai_key"] for e in entries}
    decoder = {"decoder.token_embedding.weight": torch.zeros(2, 2)}
    return {**{names[k]: v for k, v in whisper.items()}, **decoder}


def to_transformers(whisper: dict) -> dict:
    extra = {"model.decoder.embed_tokens.weight": torch.zeros(3), "proj_out.weight": torch.zeros(3)}
    return {**{f"model.encoder.{k}": v for k, v in whisper.items()}, **extra}


def save(path: Path, tensors: dict, kind: str = "zip") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=kind == "zip")


def write_json(path: Path, values: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values), encoding="utf-8")


def whisper_json() -> dict:
    w = SMALL.whisper
    return {
        "num_mel_bins": w.n_mels, "d_model": w.d_model, "encoder_layers": w.encoder_layers,
        "encoder_attention_heads": w.encoder_attention_heads, "encoder_ffn_dim": w.encoder_ffn_dim,
        "max_source_positions": w.max_source_positions, "model_type": "whisper", "vocab_size": 51865,
    }  # fmt: skip


def write_model(
    root: Path, state: dict, folder: str = "musetalkV15", unet: str = "unet.pth", kind="zip"
) -> None:
    """A models folder as `talkinghead models download` leaves it, at toy size."""
    parts = SMALL.to_dict()
    write_json(
        root / f"musetalk/{folder}/musetalk.json", {**parts["unet"], "_class_name": "UNet2DConditionModel"}
    )
    save(root / f"musetalk/{folder}/{unet}", part(state, "unet"), kind)
    write_json(
        root / "musetalk/sd-vae/config.json", {**parts["vae"], "force_upcast": True, "_class_name": "A"}
    )
    save(root / "musetalk/sd-vae/diffusion_pytorch_model.safetensors", part(state, "vae"))
    write_json(root / "musetalk/whisper/config.json", whisper_json())
    save(root / "musetalk/whisper/model.safetensors", to_transformers(part(state, "whisper")))


def assert_weights(nets: MuseTalkNets, state: dict, dtype: torch.dtype = torch.float32) -> None:
    found = nets.state_dict()
    assert set(found) == set(state)
    for key, value in state.items():
        assert found[key].dtype == dtype
        assert torch.equal(found[key], value.to(dtype)), key
    assert not nets.training
    assert not any(p.requires_grad or p.is_meta for p in nets.parameters())
