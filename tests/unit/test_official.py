"""Official weights in every form they come in, at toy size: loaded, compared bit by bit, and each fault named."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from official_parts import (
    CROP,
    GOLDEN,
    SMALL,
    assert_weights,
    make_state,
    part,
    save,
    to_ldm,
    to_legacy,
    to_openai,
    to_transformers,
    write_json,
    write_model,
)

from talkinghead.nodes.core.checkpoint import BadCheckpoint
from talkinghead.nodes.core.checkpoints import sha256_once
from talkinghead.nodes.core.models import MissingModel
from talkinghead.nodes.musetalk import handle as handle_module
from talkinghead.nodes.musetalk.config import OFFICIAL
from talkinghead.nodes.musetalk.handle import MuseTalkModel, available, describe
from talkinghead.nodes.musetalk.model import MuseTalkNets, build_nets, on_meta
from talkinghead.nodes.musetalk.official import (
    find_official,
    fine_tunes,
    load_official,
    look_for,
    normalize_whisper_keys,
    official_config,
)


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return make_state()


@pytest.fixture
def root(tmp_path, state) -> Path:
    write_model(tmp_path, state)
    return tmp_path


def outputs(nets: MuseTalkNets) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    mel = torch.randn(1, 80, 3000, generator=generator)
    crop = torch.randint(0, 256, (1, CROP, CROP, 3), generator=generator, dtype=torch.uint8)
    tokens = torch.randn(1, SMALL.n_tokens, 32, generator=generator)
    latents = nets.encode_crops(crop)
    return [nets.encode_audio(mel), latents, nets.predict(latents, tokens)]


def test_outputs_equal_those_of_our_own_file_bit_by_bit(root, state):
    files = find_official("musetalk-1.5", (root,))
    assert official_config(files) == SMALL
    low = replace(SMALL, crop_size=CROP)  # the VAE's attention over 256 pixels would take 20 s here
    nets = load_official(files, base=low)
    assert nets.config == low
    assert_weights(nets, state)
    for mine, theirs in zip(outputs(nets), outputs(build_nets(low, state, "own")), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["unet.pth", "pytorch_model.bin", "unet.safetensors"])
@pytest.mark.parametrize("kind", ["zip", "stream"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_unet_in_every_format(name, kind, dtype, tmp_path, state):
    write_model(tmp_path, state, unet=name, kind=kind)
    files = find_official("musetalk-1.5", (tmp_path,))
    assert files.unet.name == name
    assert_weights(load_official(files, dtype), state, dtype)


@pytest.mark.parametrize("form", ["present", "legacy", "ldm", "ldm with prefix and the rest of the model"])
@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
def test_vae_in_every_form(form, suffix, root, state):
    vae = part(state, "vae")
    if form.startswith("ldm"):
        prefix = "first_stage_model." if "prefix" in form else ""
        content = {**to_ldm(vae, prefix), **({"model_ema.x": torch.zeros(1)} if prefix else {})}
        path = root / f"vae/vae-ft-mse-840000-ema-pruned.{suffix}"
        config = root / "vae/config.json"  # of some other model in a folder of single files: not for this one
        write_json(config, {"latent_channels": 16})
        (root / "musetalk/sd-vae/diffusion_pytorch_model.safetensors").unlink()
    else:
        content = vae if form == "present" else to_legacy(vae)
        (root / "musetalk/sd-vae/diffusion_pytorch_model.safetensors").unlink()
        path = root / "musetalk/sd-vae/diffusion_pytorch_model.bin"
        path = path.with_suffix(".safetensors") if suffix == "safetensors" else path
    save(path, {"state_dict": content} if suffix == "ckpt" and form.startswith("ldm") else content)
    files = find_official("musetalk-1.5", (root,))
    assert files.vae == path
    assert (files.vae_config is None) == form.startswith("ldm")
    assert_weights(load_official(files, base=SMALL), state)


@pytest.mark.parametrize("form", ["transformers", "transformers .bin", "encoder alone", "openai"])
def test_whisper_in_every_form(form, root, state):
    whisper = part(state, "whisper")
    folder = root / "musetalk/whisper"
    (folder / "model.safetensors").unlink()
    if form == "openai":
        dims = {"n_mels": 80, "n_audio_state": 32}
        save(folder / "tiny.pt", {"dims": dims, "model_state_dict": to_openai(whisper)})
    elif form == "encoder alone":
        save(folder / "model.safetensors", {f"encoder.{k}": v for k, v in whisper.items()})
    else:
        name = "pytorch_model.bin" if form.endswith(".bin") else "model.safetensors"
        save(folder / name, to_transformers(whisper))
    assert_weights(load_official(find_official("musetalk-1.5", (root,)), base=SMALL), state)


def test_whisper_rules_give_the_official_names():
    entries = json.loads((GOLDEN / "manifest_whisper_encoder.json").read_text())["keys"]
    official = on_meta(MuseTalkNets, OFFICIAL)
    wanted = {k: tuple(v.shape) for k, v in official.whisper.state_dict().items()}
    for name in (lambda e: e["openai_key"], lambda e: f"model.encoder.{e['key']}", lambda e: e["key"]):
        renamed = normalize_whisper_keys({name(e): torch.empty(e["shape"], device="meta") for e in entries})
        assert {k: tuple(v.shape) for k, v in renamed.items()} == wanted
    assert list(normalize_whisper_keys({"model.encoder.odd": torch.zeros(1)})) == ["odd"]


def test_official_config_of_the_published_files(root):
    for name, path in (("unet", "musetalkV15/musetalk.json"), ("vae", "sd-vae/config.json")):
        write_json(
            root / "musetalk" / path, json.loads((GOLDEN / f"manifest_{name}.json").read_text())["config"]
        )
    (root / "musetalk/whisper/config.json").unlink()
    assert official_config(find_official("musetalk-1.5", (root,))) == replace(OFFICIAL, name="musetalkV15")


def _spoil(root: Path, state: dict, which: str) -> None:
    unet, unet_json = root / "musetalk/musetalkV15/unet.pth", root / "musetalk/musetalkV15/musetalk.json"
    values = json.loads(unet_json.read_text())
    tensors = part(state, "unet")
    if which == "missing":
        tensors.pop("conv_in.weight")
    elif which == "extra":
        tensors["lora.up"] = torch.zeros(1)
    elif which == "misshapen":
        tensors["conv_in.weight"] = torch.zeros(16, 4, 3, 3)
    elif which == "first upload":
        values.update(in_channels=32, out_channels=16)
    elif which == "other family":
        values.update(act_fn="gelu")
    elif which == "unknown field":
        values.update(dual_cross_attention=True)
    elif which == "other widths":
        values.update(block_out_channels=[32, 64])
    elif which == "cut json":
        unet_json.write_text(json.dumps(values)[:40])
        return
    elif which == "list":
        unet_json.write_text("[1]")
        return
    save(unet, tensors)
    write_json(unet_json, values)


FAULTS = {
    "missing": r"unet\.pth does not fit UNet2DCondition: 1 missing \(conv_in\.weight\)",
    "extra": r"unet\.pth.*1 unexpected \(lora\.up\)",
    "misshapen": r"unet\.pth.*conv_in\.weight \(16, 4, 3, 3\) instead of \(16, 8, 3, 3\)",
    "first upload": r"musetalk\.json has in_channels 32 and out_channels 16.*first v1\.5 upload.*download musetalk-1\.5",
    "other family": r"musetalk\.json.*act_fn is 'gelu'",
    "unknown field": r"musetalk\.json.*dual_cross_attention",
    "other widths": r"unet\.pth.*misshapen",
    "cut json": r"musetalk\.json is not valid JSON",
    "list": r"musetalk\.json holds a list",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault, root, state):
    _spoil(root, state, fault)
    with pytest.raises(ValueError, match=FAULTS[fault]):
        load_official(find_official("musetalk-1.5", (root,)))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("sd-vae/diffusion_pytorch_model.safetensors", "AutoencoderKL"),
        ("whisper/model.safetensors", "WhisperEncoder"),
    ],
)
def test_faults_of_the_other_files_are_named(path, name, root):
    save(root / "musetalk" / path, {"odd": torch.zeros(2)})
    with pytest.raises(ValueError, match=f"{path.split('/')[-1]} does not fit {name}"):
        load_official(find_official("musetalk-1.5", (root,)))


def test_a_whisper_config_of_another_model_is_named(root):
    write_json(root / "musetalk/whisper/config.json", {"hidden_size": 3})
    with pytest.raises(
        ValueError, match=r"whisper.config\.json is no config of a whisper model: num_mel_bins"
    ):
        load_official(find_official("musetalk-1.5", (root,)))


def test_damaged_weights_are_named(root):
    path = root / "musetalk/musetalkV15/unet.pth"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(BadCheckpoint, match=r"unet\.pth cannot be read"):
        load_official(find_official("musetalk-1.5", (root,)))


def test_places_of_other_packs_are_known(tmp_path, state):
    models = tmp_path / "models"
    ours = models / "talkinghead"
    write_model(tmp_path / "made", state)
    made = tmp_path / "made/musetalk"
    hub = models / "musetalk/musetalkV15"
    hub.parent.mkdir(parents=True)
    (made / "musetalkV15").rename(hub)
    other = models / "diffusers/TMElyralab/MuseTalk"
    other.mkdir(parents=True)
    (made / "whisper").rename(other / "whisper")
    save(models / "vae/vae-ft-mse-840000-ema-pruned_fp16.safetensors", to_ldm(part(state, "vae")))
    files = find_official("musetalk-1.5", (ours, models))
    assert files.unet == hub / "unet.pth"
    assert files.vae.parent == models / "vae"
    assert files.whisper.parent == other / "whisper"
    assert_weights(load_official(files, base=SMALL), state)
    # a diffusers folder goes before the single file, and our own root before the rest
    (made / "sd-vae").rename(other / "sd-vae-ft-mse")
    assert find_official("musetalk-1.5", (ours, models)).vae.parent == other / "sd-vae-ft-mse"
    write_model(ours, state)
    assert all(ours in path.parents for path in find_official("musetalk-1.5", (ours, models)).all)


def test_json_and_weights_come_from_one_folder(tmp_path, state):
    first, second = tmp_path / "a", tmp_path / "b"
    write_model(second, state)
    write_json(first / "musetalk/musetalkV15/musetalk.json", {"in_channels": 32, "out_channels": 16})
    files = find_official("musetalk-1.5", (first, second))
    assert files.unet.parent == files.unet_config.parent == second / "musetalk/musetalkV15"


def test_missing_files_are_all_named(tmp_path):
    with pytest.raises(MissingModel, match="download musetalk-1.0") as caught:
        find_official("musetalk-1.0", (tmp_path,))
    for name in ("musetalk/musetalk/musetalk.json", "pytorch_model.bin", "335 MB", "151 MB", str(tmp_path)):
        assert name in str(caught.value)
    assert look_for("musetalk-1.0", (tmp_path,))[1][0] == "musetalk/musetalk/musetalk.json"


# ---- the handle


def test_embedded_handle_needs_no_roots():
    model = MuseTalkModel()
    assert (model.checkpoint, model.precision, model.version) == ("embedded", "fp32", "embedded")
    assert model.identity == sha256_once(model.folder / "model.safetensors")
    assert model == MuseTalkModel(roots=())
    assert hash(model) == hash(MuseTalkModel())
    with pytest.raises(ValueError, match="no official files"):
        _ = model.files
    assert MuseTalkModel(precision="fp16").build().weights_dtype == torch.float16


def test_official_handle(root, state):
    model = MuseTalkModel("musetalk-1.5", "fp16", [root])
    assert model.version == "1.5"
    assert model.config == SMALL
    assert model.folder == root / "musetalk/musetalkV15"
    assert model.roots == (root,)
    assert_weights(model.build(), state, torch.float16)
    assert model.identity == sha256_once(root / "musetalk/sd-vae/diffusion_pytorch_model.safetensors")


def test_identity_is_the_vae_and_key_is_every_file(root, state):
    model = MuseTalkModel("musetalk-1.5", roots=(root,))
    key, identity = model.key, model.identity
    assert MuseTalkModel("musetalk-1.5", roots=(root,)).key == key
    assert MuseTalkModel("musetalk-1.5", "fp16", (root,)).key != key
    for path in model.paths:
        before = os.stat(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
        assert model.key != key, path
        key = model.key
    assert model.identity == identity  # touched, not changed
    save(root / "musetalk/musetalkV15/unet.pth", {"other": torch.zeros(9)})
    assert model.identity == identity
    save(root / "musetalk/sd-vae/diffusion_pytorch_model.safetensors", {"other": torch.zeros(9)})
    assert model.identity != identity


def test_versions_and_fine_tunes(root, state):
    write_model(root, state, "musetalk", "pytorch_model.bin")
    write_model(root, state, "my tune", "unet.safetensors")
    write_json(root / "musetalk/no weights/musetalk.json", {})
    assert fine_tunes((root, root / "none")) == ["my tune"]
    assert MuseTalkModel("musetalk-1.0", roots=(root,)).version == "1.0"
    tune = MuseTalkModel("my tune", roots=(root,))
    assert (tune.version, tune.config.name) == ("1.5", "my tune")
    assert_weights(tune.build(), state)


def test_unknown_names_and_missing_files(root):
    with pytest.raises(
        ValueError, match="'musetalk-9' is unknown; there are embedded, musetalk-1.5, musetalk-1.0"
    ):
        MuseTalkModel("musetalk-9", roots=(root,))
    with pytest.raises(ValueError, match="'../x' is unknown"):
        MuseTalkModel("../x", roots=(root,))
    with pytest.raises(ValueError, match="precision 'int8' is unknown; use one of fp32, fp16"):
        MuseTalkModel(precision="int8")
    with pytest.raises(MissingModel, match="musetalk-1.0"):
        MuseTalkModel("musetalk-1.0", roots=(root,))
    model = MuseTalkModel("musetalk-1.5", roots=(root,))
    (root / "musetalk/whisper/model.safetensors").unlink()
    for use in (lambda: model.key, model.build):
        with pytest.raises(MissingModel, match=r"whisper/model\.safetensors"):
            use()


def test_available_and_describe(root, state):
    write_model(root, state, "tune")
    states = {s.name: s for s in available((root,))}
    assert list(states) == ["embedded", "musetalk-1.5", "musetalk-1.0", "tune"]
    assert [s.ready for s in states.values()] == [True, True, False, True]
    assert states["musetalk-1.0"].missing == (
        "musetalk/musetalk/musetalk.json", "musetalk/musetalk/pytorch_model.bin",
    )  # fmt: skip
    text = describe((root,)).splitlines()
    assert text[0] == "embedded: ready"
    assert "talkinghead models download musetalk-1.0" in text[2]
    assert "3.89 GB" in describe()


def test_a_vanished_embedded_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", tmp_path)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        _ = MuseTalkModel().identity
