"""Configs and the networks they describe: round trips, refusals, unusual sizes, batches, files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from talkinghead.nodes.musetalk.config import (
    EMBEDDED,
    OFFICIAL,
    MuseTalkConfig,
    UNetConfig,
    VAEConfig,
    WhisperConfig,
)
from talkinghead.nodes.musetalk.model import (
    MuseTalkNets,
    build_nets,
    load_nets,
    load_strict,
    on_meta,
    save_nets,
    to_rgb_uint8,
)
from talkinghead.nodes.musetalk.whisper import log_mel, positional_encoding

WHISPER = WhisperConfig(
    n_mels=20,
    d_model=24,
    encoder_layers=2,
    encoder_attention_heads=3,
    encoder_ffn_dim=40,
    max_source_positions=50,
)
UNET = UNetConfig(
    block_out_channels=(16, 24),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    layers_per_block=1,
    norm_num_groups=4,
    cross_attention_dim=24,
    attention_head_dim=2,
)
SMALL = MuseTalkConfig(
    name="small",
    crop_size=32,
    whisper=WHISPER,
    unet=UNET,
    vae=VAEConfig(block_out_channels=(8, 12, 16), layers_per_block=1, norm_num_groups=4),
)
ODD = {
    "small": SMALL,
    "crop 96, four states": replace(SMALL, crop_size=96, whisper=replace(WHISPER, encoder_layers=3)),
    "one UNet level, two layers": replace(
        SMALL,
        unet=replace(
            UNET,
            block_out_channels=(16,),
            down_block_types=("DownBlock2D",),
            up_block_types=("CrossAttnUpBlock2D",),
            layers_per_block=2,
        ),
    ),
    "three UNet levels, attention everywhere": replace(
        SMALL,
        unet=replace(
            UNET,
            block_out_channels=(8, 16, 24),
            down_block_types=("CrossAttnDownBlock2D",) * 3,
            up_block_types=("CrossAttnUpBlock2D",) * 3,
        ),
    ),
    "no attention but in the middle, three layers": replace(
        SMALL,
        unet=replace(
            UNET, down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, layers_per_block=3
        ),
    ),
    "two VAE levels, wider latent, longer window": replace(
        SMALL,
        unet=replace(UNET, in_channels=12, out_channels=6),
        vae=VAEConfig(block_out_channels=(8, 16), latent_channels=6, layers_per_block=2, norm_num_groups=4),
        window_left=1,
        window_right=3,
        masked_fraction=0.375,
    ),
}


def make_nets(config: MuseTalkConfig) -> MuseTalkNets:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        state = MuseTalkNets(config).state_dict()
    return build_nets(config, state, "random")


def make_inputs(config: MuseTalkConfig, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    size = config.crop_size
    crops = torch.randint(0, 256, (batch, size, size, 3), generator=generator, dtype=torch.uint8)
    return crops, torch.randn(batch, config.n_tokens, config.whisper.d_model, generator=generator)


@pytest.mark.parametrize("config", [OFFICIAL, EMBEDDED, *ODD.values()])
def test_round_trip_through_json(config):
    assert MuseTalkConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_derived_sizes():
    official = (OFFICIAL.latent_size, OFFICIAL.window_rows, OFFICIAL.n_states, OFFICIAL.n_tokens)
    assert official == (32, 10, 5, 50)
    assert (OFFICIAL.masked_from_row, OFFICIAL.whisper.piece_samples) == (128, 480_000)
    embedded = (EMBEDDED.latent_size, EMBEDDED.window_rows, EMBEDDED.n_states, EMBEDDED.n_tokens)
    assert embedded == (16, 10, 4, 40)
    assert EMBEDDED.masked_from_row == 64


def test_published_unet_file_describes_the_official_model():
    published = {
        **OFFICIAL.to_dict()["unet"],
        "_class_name": "UNet2DConditionModel",
        "_diffusers_version": "0.6",
    }
    assert MuseTalkConfig.from_dict(published) == OFFICIAL


def test_embedded_files_fit_the_size_limit():
    nets = on_meta(MuseTalkNets, EMBEDDED)
    assert sum(p.numel() for p in nets.parameters()) * 2 <= 12_000_000


@pytest.mark.parametrize(
    ("cls", "values", "named"),
    [
        (MuseTalkConfig, {"crop": 256, "speed": 1}, "crop, speed"),
        (MuseTalkConfig, {"whisper": {"d_modell": 3}}, "d_modell"),
        (MuseTalkConfig, {"whisper": 3}, "WhisperConfig needs a JSON object"),
        (MuseTalkConfig, ["unet"], "MuseTalkConfig needs a JSON object"),
        (MuseTalkConfig, {"crop_size": 100}, "crop_size is 100: .* multiple of 64"),
        (MuseTalkConfig, {"crop_size": "256"}, "crop_size is '256'"),
        (MuseTalkConfig, {"masked_fraction": 1.0}, "masked_fraction is 1.0"),
        (MuseTalkConfig, {"masked_fraction": None}, "masked_fraction is None"),
        (MuseTalkConfig, {"window_left": -1}, "window_left is -1"),
        (MuseTalkConfig, {"window_right": 1.5}, "window_right is 1.5"),
        (
            MuseTalkConfig,
            {"whisper": {"d_model": 192}},
            "cross_attention_dim is 384, .* whisper.d_model = 192",
        ),
        (MuseTalkConfig, {"vae": {"latent_channels": 8}}, "in_channels is 8, .* = 16"),
        (WhisperConfig, {"d_model": 100}, "d_model has 100, not a multiple of encoder_attention_heads 6"),
        (WhisperConfig, {"d_model": 9, "encoder_attention_heads": 3}, "d_model is 9"),
        (WhisperConfig, {"encoder_layers": 0}, "encoder_layers is 0"),
        (WhisperConfig, {"n_mels": True}, "n_mels is True"),
        (UNetConfig, {"in_channels": 0}, "in_channels is 0"),
        (UNetConfig, {"block_out_channels": []}, "block_out_channels"),
        (UNetConfig, {"block_out_channels": 64}, "block_out_channels is 64"),
        (
            UNetConfig,
            {"block_out_channels": [320, 640, 1280, 1270]},
            "has 1270, not a multiple of norm_num_groups",
        ),
        (UNetConfig, {"attention_head_dim": 7}, "not a multiple of attention_head_dim 7"),
        (UNetConfig, {"down_block_types": ["DownBlock2D"]}, "down_block_types"),
        (UNetConfig, {"up_block_types": ["Up"] * 4}, "up_block_types"),
        (UNetConfig, {"up_block_types": None}, "up_block_types"),
        (UNetConfig, {"act_fn": "relu"}, "act_fn is 'relu'"),
        (UNetConfig, {"norm_eps": "1e-5"}, "norm_eps is '1e-5'"),
        (UNetConfig, {"layers_per_block": 10**6}, "layers_per_block is 1000000: .* at most 64"),
        (UNetConfig, {"in_channels": 10**9}, "in_channels is 1000000000: .* at most 65536"),
        (UNetConfig, {"block_out_channels": [32] * 10**5}, "for at most 16 levels"),
        (UNetConfig, {"block_out_channels": [32 * 10**6] * 4}, "at most 65536, for"),
        (UNetConfig, {"freq_shift": None}, "freq_shift is None"),
        (UNetConfig, {"freq_shift": float("nan")}, "freq_shift is nan"),
        (VAEConfig, {"layers_per_block": 65}, "layers_per_block is 65"),
        (WhisperConfig, {"encoder_layers": 65}, "encoder_layers is 65"),
        (WhisperConfig, {"max_source_positions": 10**7}, "max_source_positions is 10000000"),
        (MuseTalkConfig, {"window_left": 10**5}, "window_left is 100000"),
        (MuseTalkConfig, {"window_left": 60000}, "audio tokens of 384 numbers a frame are too many"),
        (VAEConfig, {"in_channels": 4}, "in_channels is 4"),
        (VAEConfig, {"scaling_factor": 0}, "scaling_factor is 0"),
        (VAEConfig, {"norm_num_groups": 48}, "norm_num_groups 48"),
    ],
)
def test_bad_values_are_named(cls, values, named):
    with pytest.raises(ValueError, match=named):
        cls.from_dict(values)


@pytest.mark.parametrize("config", ODD.values(), ids=ODD)
def test_any_size_runs_from_audio_to_picture(config):
    nets = make_nets(config)
    audio = torch.randn(1, 9_000, generator=torch.Generator().manual_seed(1)) * 0.1
    mel = log_mel(audio, config.whisper.n_mels, config.whisper.piece_samples)
    states = nets.encode_audio(mel)
    assert states.shape == (1, config.whisper.max_source_positions, config.n_states, config.whisper.d_model)
    tokens = states[:, 3 : 3 + config.window_rows].flatten(1, 2)
    assert tokens.shape[1] == config.n_tokens
    crops, _ = make_inputs(config, 1)
    latents = nets.encode_crops(crops)
    assert latents.shape == (1, 2 * config.latent_channels, config.latent_size, config.latent_size)
    out = nets.predict(latents, tokens)
    assert out.shape == crops.shape
    assert out.dtype == torch.uint8


@pytest.mark.parametrize("config", [SMALL, EMBEDDED], ids=["small", "embedded"])
def test_batch_of_one_equals_batch_of_eight(config):
    nets = make_nets(config)
    crops, tokens = make_inputs(config, 8)
    latents = nets.encode_crops(crops)
    alone = torch.cat([nets.encode_crops(crop[None]) for crop in crops])
    assert (latents - alone).abs().max() <= 1e-5
    raw = nets(latents, tokens)
    each = torch.cat([nets(latents[i : i + 1], tokens[i : i + 1]) for i in range(8)])
    assert (raw - each).abs().max() <= 1e-4
    assert (raw[1:] - raw[:-1]).abs().amax(dim=(1, 2, 3)).min() > 1e-2  # eight different pictures
    levels = (to_rgb_uint8(raw).int() - to_rgb_uint8(each).int()).abs()
    assert levels.max() <= 1
    assert levels.float().mean() <= 1e-3


def test_positions_matter_to_the_picture():
    nets = make_nets(SMALL)
    crops, tokens = make_inputs(SMALL, 1)
    latents = nets.encode_crops(crops)
    assert (nets(latents, tokens) - nets(latents, tokens.flip(1))).abs().max() > 1e-4


def test_masked_half_hides_the_mouth_from_the_masked_latent():
    nets = make_nets(SMALL)
    crops, _ = make_inputs(SMALL, 1)
    changed = crops.clone()
    changed[:, SMALL.masked_from_row :] = 255 - changed[:, SMALL.masked_from_row :]
    before, after = nets.encode_crops(crops), nets.encode_crops(changed)
    channels = SMALL.latent_channels
    assert torch.equal(before[:, :channels], after[:, :channels])
    assert not torch.equal(before[:, channels:], after[:, channels:])


def test_rounding_is_half_to_even_after_clamping():
    levels = torch.tensor([0.5, 1.5, 2.5, 254.5, 300.0, -40.0])
    image = (levels / 255 * 2 - 1).reshape(1, 1, 1, 6).expand(1, 3, 1, 6)
    assert to_rgb_uint8(image.double())[0, 0, 4:, 0].tolist() == [255, 0]
    halves = torch.round(levels[:4]).tolist()
    assert to_rgb_uint8(image)[0, 0, :4, 0].tolist() == pytest.approx(halves, abs=1)


def test_gradients_reach_every_weight():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        nets = MuseTalkNets(SMALL)
    mel = torch.randn(1, WHISPER.n_mels, 2 * WHISPER.max_source_positions)
    tokens = nets.encode_audio(mel)[:, : SMALL.window_rows].flatten(1, 2)
    crops, _ = make_inputs(SMALL, 1)
    masked, whole = nets.network_inputs(crops)
    latents = torch.cat([nets.vae.encode(masked)[0], nets.vae.encode(whole)[0]], dim=1)
    nets(latents, tokens).square().mean().backward()
    without = {name for name, p in nets.named_parameters() if p.grad is None}
    # used by nothing that reaches the picture: the log-variance shares quant_conv, so only the fixed table is left
    assert without == {"whisper.embed_positions.weight"}


def test_save_and_load(tmp_path):
    nets = make_nets(SMALL)
    save_nets(nets, tmp_path / "new", torch.float32)
    before = torch.random.get_rng_state()
    loaded = load_nets(tmp_path / "new")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert loaded.config == SMALL
    assert not any(p.requires_grad or p.is_meta for p in loaded.parameters())
    assert not loaded.training
    crops, tokens = make_inputs(SMALL, 2)
    assert torch.equal(
        loaded.predict(loaded.encode_crops(crops), tokens), nets.predict(nets.encode_crops(crops), tokens)
    )
    save_nets(nets, tmp_path / "half")
    assert load_nets(tmp_path / "half", torch.bfloat16).weights_dtype == torch.bfloat16
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("new", "half")]
    assert sizes[1] < 0.7 * sizes[0]


def test_missing_or_damaged_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        load_nets(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        load_nets(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMALL.to_dict()))
    with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
        load_nets(tmp_path)


def test_strict_load_names_what_is_wrong():
    nets = make_nets(SMALL)
    state = dict(nets.unet.state_dict())
    del state["conv_in.bias"]
    state["stranger"] = torch.zeros(2)
    state["conv_out.weight"] = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="unet.pth does not fit UNet2DCondition") as error:
        load_strict(nets.unet, state, "unet.pth")
    for part in (
        "1 missing (conv_in.bias)",
        "1 unexpected (stranger)",
        "conv_out.weight (1, 2) instead of (4, 16",
    ):
        assert part in str(error.value)
    state = dict(nets.unet.state_dict())
    state["conv_in.bias"], state["conv_out.bias"] = (
        state["conv_in.bias"].int(),
        state["conv_out.bias"] * float("nan"),
    )
    with pytest.raises(ValueError, match=r"unet.pth .* 1 of another type \(conv_in.bias int32\)"):
        load_strict(nets.unet, state, "unet.pth")
    del state["conv_in.bias"]
    state["conv_in.bias"] = nets.unet.conv_in.bias.detach()
    before = nets.unet.conv_out.bias.detach().clone()
    with pytest.raises(
        ValueError, match=r"unet.pth has values that are not finite in 1 tensors \(conv_out.bias"
    ):
        load_strict(nets.unet, state, "unet.pth")
    assert torch.equal(nets.unet.conv_out.bias, before)
    with pytest.raises(ValueError, match=r"missing \(.* and \d+ more\)"):
        load_strict(nets.unet, {}, "empty")


def test_strict_load_into_a_network_with_memory_copies():
    nets = make_nets(SMALL)
    state = {k: torch.full_like(v, 0.5) for k, v in nets.vae.state_dict().items()}
    load_strict(nets.vae, state, "constant", torch.float32)
    state["quant_conv.bias"].zero_()
    assert (nets.vae.quant_conv.bias == 0.5).all()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda n: n.encode_crops(torch.zeros(1, 31, 32, 3, dtype=torch.uint8)),
            r"32, 32, 3\), got torch.uint8",
        ),
        (lambda n: n.encode_crops(torch.zeros(1, 32, 32, 3)), "uint8"),
        (
            lambda n: n.encode_crops(*[torch.zeros(b, 32, 32, 3, dtype=torch.uint8) for b in (2, 1)]),
            "1 reference",
        ),
        (lambda n: n.predict(torch.zeros(1, 8, 4, 8), torch.zeros(1, 30, 24)), "latents must be"),
        (lambda n: n.predict(torch.zeros(1, 8, 8, 8), torch.zeros(1, 50, 24)), "audio tokens must be"),
        (lambda n: n.predict(torch.zeros(2, 8, 8, 8), torch.zeros(1, 30, 24)), "UNet needs tokens"),
        (lambda n: n.unet(torch.zeros(1, 8, 7, 8), torch.zeros(1, 30, 24)), "must divide by 2"),
        (lambda n: n.unet(torch.zeros(1, 4, 8, 8), torch.zeros(1, 30, 24)), "UNet needs a sample"),
        (lambda n: n.vae.encode(torch.zeros(1, 3, 30, 32)), "divide by 4"),
        (lambda n: n.vae.decode(torch.zeros(1, 3, 8, 8)), "VAE needs latents"),
        (lambda n: n.whisper(torch.zeros(1, 20, 99)), r"\(batch, 20, 100\)"),
        (lambda n: positional_encoding(10, 7), "even dim"),
    ],
)
def test_wrong_shapes_are_refused(call, named):
    with pytest.raises(ValueError, match=named):
        call(make_nets(SMALL))
