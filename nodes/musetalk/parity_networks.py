"""Parity of the networks: UNet, VAE, face parsing, and the manifests of their weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.blend import crop_geometry
from ..core.parity_measure import Result, Tolerance, close, exact, not_run, record
from .bisenet import BiSeNet
from .config import OFFICIAL
from .masks import crop_square, parser_input
from .model import on_meta, to_rgb_uint8
from .official import normalize_whisper_keys
from .parity_recipe import Goldens, recipe_network, recipe_tensor, synthetic_frame
from .unet import UNet2DCondition
from .vae import AutoencoderKL, normalize_vae_keys
from .whisper import WhisperEncoder, positional_encoding

_TIES = 21
"""Pixels of the parsed crop whose two best classes are within 1e-4."""
_TRACE_SKIPPED = "bounds are stated for outputs only"


def with_positions(goldens: Goldens, tokens: Tensor) -> Tensor:
    """Return audio tokens (B, T, C) in the networks' precision with the positional table added in it."""
    tokens = goldens.cast(tokens)
    return tokens + positional_encoding(*tokens.shape[1:], tokens.device, tokens.dtype)


def unet_full(goldens: Goldens) -> Iterator[Result]:
    unet = recipe_network(UNet2DCondition, OFFICIAL.unet, goldens.dtype, goldens.device)
    yield _unet("unet_full", goldens, unet)


def unet_reduced(goldens: Goldens) -> Iterator[Result]:
    yield _unet("unet_reduced", goldens, goldens.nets.unet)


def _unet(name: str, goldens: Goldens, unet: UNet2DCondition) -> Result:
    data = goldens.tensors(name)
    latent, tokens = goldens.cast(data["latent_in"]), with_positions(goldens, data["audio_in"])
    pairs = {"out": (unet(latent, tokens), data["out"])}
    if "out_zero_audio" in data:
        silent = torch.zeros_like(tokens[:1])
        pairs["out_zero_audio"] = (unet(latent[:1], silent), data["out_zero_audio"])
    if "out_t7_item0" in data:
        pairs["out_t7_item0"] = (unet(latent[:1], tokens[:1], 7), data["out_t7_item0"])
    return close(name, pairs, goldens.network)


def unet_trace(goldens: Goldens) -> Iterator[Result]:
    data, unet = goldens.tensors("unet_reduced_trace"), goldens.nets.unet
    names = [key.removeprefix("act.") for key in data if key.startswith("act.")]
    out = []
    latent, tokens = goldens.cast(data["latent_in"]), with_positions(goldens, data["audio_in"])
    seen = record(unet, names, lambda: out.append(unet(latent, tokens)))
    pairs = {"out": (out[0], data["out"])}
    yield from _trace("unet_reduced_trace", goldens, pairs, seen, data)


def vae_full(goldens: Goldens) -> Iterator[Result]:
    vae = recipe_network(AutoencoderKL, OFFICIAL.vae, goldens.dtype, goldens.device)
    yield from _vae("vae_full", goldens, vae)


def vae_reduced(goldens: Goldens) -> Iterator[Result]:
    yield from _vae("vae_reduced", goldens, goldens.nets.vae)


def _vae(name: str, goldens: Goldens, vae: AutoencoderKL) -> Iterator[Result]:
    data, scale = goldens.tensors(name), vae.config.scaling_factor
    mean, logvar = vae.encode(goldens.cast(data["image_in"]))
    noise = goldens.cast(data["noise_seed77"])
    pairs = {
        "mean": (mean, data["mean"]),
        "logvar": (logvar, data["logvar"]),
        "upstream_encode_seed77": (
            scale * (mean + (logvar / 2).exp() * noise),
            data["upstream_encode_seed77"],
        ),
        "decoded": (vae.decode(goldens.cast(data["z_in"])), data["decoded"]),
    }
    yield close(name, pairs, goldens.network)
    picture = to_rgb_uint8(vae.decode(goldens.cast(data["decode_latents_in"]) / scale)).flip(-1)
    yield close(
        f"{name}.picture", {"decode_latents": (picture, data["decode_latents_bgr_u8"])}, goldens.image
    )


def vae_trace(goldens: Goldens) -> Iterator[Result]:
    data, vae = goldens.tensors("vae_reduced_trace"), goldens.nets.vae
    names = [key.removeprefix("act.") for key in data if key.startswith("act.")]
    out = {}

    def both() -> None:
        out["moments"] = torch.cat(vae.encode(goldens.cast(data["image_in"])), 1)
        out["decoded"] = vae.decode(goldens.cast(data["z_in"]))

    seen = record(vae, names, both)
    pairs = {key: (value, data[key]) for key, value in out.items()}
    yield from _trace("vae_reduced_trace", goldens, pairs, seen, data)


def _trace(name: str, goldens: Goldens, pairs: dict, seen: dict, data: dict) -> Iterator[Result]:
    inner = {key: (value, data[f"act.{key}"]) for key, value in seen.items()}
    yield close(name, pairs if not goldens.is_fp32 else {**pairs, **inner}, goldens.network)
    if not goldens.is_fp32:
        yield not_run(f"{name}.act", f"{len(inner)} inner tensors in {goldens.precision}: {_TRACE_SKIPPED}")


def bisenet(goldens: Goldens) -> Iterator[Result]:
    """Face parsing, always in float32 as upstream runs it."""
    data = goldens.tensors("bisenet")
    net = recipe_network(BiSeNet, 19, torch.float32, goldens.device)
    small = data["in64"].to(goldens.device)
    feat8, up8, _ = net.cp(small)
    seen = {
        "resnet_feat32": net.cp.resnet(small)[2],
        "cp8_ch0_31": up8[:, :32],
        "ffm_ch0_31": net.ffm(feat8, up8)[:, :32],
    }
    outputs = net.all_outputs(small)
    pairs = {key: (value, data[key]) for key, value in seen.items()}
    for key, value in zip(("out_every4", "out16_every4", "out32_every4"), outputs, strict=True):
        pairs[key] = (value[..., ::4, ::4], data[key])
    crop = crop_geometry((250, 80, 390, 270))  # the `centre` crop of the blend cases
    square = crop_square(synthetic_frame()[..., ::-1], crop)
    picture = torch.from_numpy(parser_input(square))
    logits = net(picture[None].to(goldens.device))[0]
    pairs["centre512_logits_every16"] = (logits[:, ::16, ::16], data["centre512_logits_every16"])
    yield close("bisenet", pairs, goldens.float32)
    yield close(
        "bisenet.input",
        {"centre512": (picture[:, ::16, ::16], data["centre512_in_every16"])},
        Tolerance(1e-6),
    )
    counts = logits.argmax(0).flatten().cpu().bincount(minlength=len(data["centre512_label_counts"]))
    yield close("bisenet.labels", {"pixels": (counts, data["centre512_label_counts"])}, Tolerance(_TIES))


MANIFESTS = {
    "unet": lambda goldens: on_meta(UNet2DCondition, OFFICIAL.unet),
    "unet_reduced": lambda goldens: on_meta(UNet2DCondition, goldens.reduced_config.unet),
    "vae": lambda goldens: on_meta(AutoencoderKL, OFFICIAL.vae),
    "whisper_encoder": lambda goldens: on_meta(WhisperEncoder, OFFICIAL.whisper),
    "bisenet": lambda goldens: on_meta(BiSeNet, 19),
}

_CONFIGS = {"unet": OFFICIAL.unet, "vae": OFFICIAL.vae}


def manifest(goldens: Goldens, name: str) -> Iterator[Result]:
    """Names and shapes against the pack's module, then the recipe's weights against their first values and sums."""
    described = goldens.json(f"manifest_{name}")
    entries, module = described["keys"], MANIFESTS[name](goldens)
    own = {key: list(value.shape) for key, value in module.state_dict().items()}
    pairs = {
        "n_keys": (len(own), described["n_keys"]),
        "n_parameters": (sum(p.numel() for p in module.parameters()), described["n_parameters"]),
        "names": (sorted(own), sorted(entry["key"] for entry in entries)),
        **{entry["key"]: (own.get(entry["key"]), entry["shape"]) for entry in entries},
    }
    if name in _CONFIGS:
        official = _CONFIGS[name]
        pairs["config"] = (type(official).from_dict(described["config"]), official)
    for layout in _RENAMED:
        pairs.update(_older_names(entries, layout))
    yield exact(f"manifest_{name}", pairs, f"{len(entries)} keys")
    firsts, sums = {}, {}
    for entry in entries:
        weight = recipe_tensor(entry["key"], entry["shape"])
        firsts[entry["key"]] = (weight.flatten()[0].item(), entry["recipe_first"])
        total = weight.abs().sum(dtype=torch.float64).item()
        scale = abs(entry["recipe_abs_sum"]) or 1.0
        sums[entry["key"]] = (total / scale, entry["recipe_abs_sum"] / scale)
    yield close(f"manifest_{name}.recipe_first", firsts, Tolerance(3e-7))
    yield close(f"manifest_{name}.recipe_sum", sums, Tolerance(1e-6), "relative")


_RENAMED = {
    "legacy_key": normalize_vae_keys,
    "ldm_key": normalize_vae_keys,
    "openai_key": normalize_whisper_keys,
}


def _older_names(entries: list[dict], layout: str) -> dict[str, tuple]:
    """Pairs that say whether names of another file layout are turned into ours, with our shapes."""
    if not any(layout in entry for entry in entries):
        return {}
    stored = {}
    for entry in entries:
        shape = entry.get("ldm_shape", entry["shape"]) if layout == "ldm_key" else entry["shape"]
        stored[entry.get(layout, entry["key"])] = torch.empty(shape, device="meta")
    renamed = {key: list(value.shape) for key, value in _RENAMED[layout](stored).items()}
    return {layout: (renamed, {entry["key"]: entry["shape"] for entry in entries})}
