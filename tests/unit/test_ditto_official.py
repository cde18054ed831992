"""Ditto's official files: found, unwrapped, folded, refused with the file and the key."""

from __future__ import annotations

import pytest
import torch
from ditto_parts import TINY, inputs, official_states, save_official, tiny_nets
from safetensors.torch import save_file

from talkinghead.nodes.core.models import MissingModel
from talkinghead.nodes.ditto.decoder import fold_spectral_norm
from talkinghead.nodes.ditto.official import find_official, load_official, look_for


@pytest.fixture(scope="module")
def states():
    return official_states()


@pytest.fixture
def root(tmp_path, states):
    save_official(tmp_path / "ditto" / "ditto_pytorch" / "models", states)
    return tmp_path


def test_official_files_become_the_networks(root):
    nets = load_official(find_official((root,)), config=TINY)
    wanted = tiny_nets().state_dict()
    found = nets.state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[key], value) for key, value in wanted.items())
    assert not any(parameter.requires_grad for parameter in nets.parameters())
    assert nets.warp.dense_motion_network.grid.device.type == "cpu"


def test_half_precision_is_made_at_load(root):
    nets = load_official(find_official((root,)), torch.float16, TINY)
    assert nets.weights_dtype == torch.float16
    assert nets.motion.detector.norm.weight.dtype == torch.float32
    assert nets.appearance.first.norm.num_batches_tracked.dtype == torch.int64
    assert nets.warp.dense_motion_network.grid.dtype == torch.float32


def test_folding_gives_what_the_norm_hook_of_torch_computes():
    with torch.random.fork_rng():
        torch.manual_seed(5)
        conv = torch.nn.utils.spectral_norm(torch.nn.Conv2d(4, 6, 3)).eval()
    state = {f"up_0.conv_0.{key}": value for key, value in conv.state_dict().items()}
    folded = fold_spectral_norm(state)
    assert sorted(folded) == ["up_0.conv_0.bias", "up_0.conv_0.weight"]
    x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        plain = torch.nn.functional.conv2d(x, folded["up_0.conv_0.weight"], folded["up_0.conv_0.bias"])
        expected = conv(x)
    assert (expected - plain).norm() <= 1e-6 * expected.norm()


def test_plain_weights_and_safetensors_are_read_as_well(root, states):
    folder = root / "ditto"
    save_file(
        {k: v.contiguous() for k, v in fold_spectral_norm(states["decoder"]).items()},
        folder / "decoder.safetensors",
    )
    save_file(states["stitch_network"], folder / "stitch_network.safetensors")
    files = find_official((root,))
    assert files.decoder.suffix == files.stitch_network.suffix == ".safetensors"
    assert files.lmdm.name == "lmdm_v0.4_hubert.pth"
    found, given = load_official(files, config=TINY), inputs(TINY, 1)
    with torch.no_grad():
        arguments = given["volume"], given["kp_source"], given["kp_driving"]
        assert torch.equal(found(*arguments), tiny_nets()(*arguments))


def test_missing_files_are_named(root):
    (root / "ditto" / "ditto_pytorch" / "models" / "warp_network.pth").unlink()
    found, missing = look_for((root,))
    assert missing == ("ditto/warp_network.pth",)
    assert found["decoder"].name == "decoder.pth"
    with pytest.raises(MissingModel, match=r"ditto/warp_network\.pth"):
        find_official((root,))


def change(state, kind):
    if kind == "missing":
        del state["G_middle_0.conv_1.weight_v"]
    elif kind == "size":
        state["up_0.conv_s.weight_u"] = torch.ones(3)
    elif kind == "stranger":
        state["up_9.bias"] = torch.ones(1)
    elif kind == "zero":
        state["up_0.conv_0.weight_v"] = torch.zeros_like(state["up_0.conv_0.weight_v"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"decoder\.pth does not fit SpadeDecoder: 1 missing \(G_middle_0\.conv_1\.weight_v\)"),
        ("size", r"decoder\.pth .*up_0\.conv_s\.weight_u \(3,\) instead of \(16,\)"),
        ("stranger", r"decoder\.pth .*1 unexpected \(up_9\.bias\)"),
        ("zero", r"decoder\.pth: up_0\.conv_0\.weight_orig has the spectral norm 0"),
    ],
)
def test_a_decoder_that_does_not_fit_names_file_and_key(root, states, kind, message):
    state = dict(states["decoder"])
    change(state, kind)
    torch.save(state, root / "ditto" / "decoder.pth")
    with pytest.raises(ValueError, match=message):
        load_official(find_official((root,)), config=TINY)


def test_other_files_that_do_not_fit_are_named(root, states):
    folder = root / "ditto"
    state = {k: v for k, v in states["motion_extractor"].items() if k != "detector.fc_t.bias"}
    torch.save(state, folder / "motion_extractor.pth")
    with pytest.raises(ValueError, match=r"motion_extractor\.pth .*detector\.fc_t\.bias"):
        load_official(find_official((root,)), config=TINY)
    (folder / "motion_extractor.pth").unlink()
    torch.save({"retarget_mouth": {"a": torch.ones(1)}}, folder / "stitch_network.pth")
    with pytest.raises(ValueError, match=r"stitch_network\.pth has no entry retarget_shoulder"):
        load_official(find_official((root,)), config=TINY)


def test_numbers_that_are_not_finite_are_refused(root, states):
    state = dict(states["appearance_extractor"])
    state["second.bias"] = state["second.bias"].clone()
    state["second.bias"][3] = float("nan")
    torch.save(state, root / "ditto" / "appearance_extractor.pth")
    with pytest.raises(ValueError, match=r"appearance_extractor\.pth .*second\.bias"):
        load_official(find_official((root,)), config=TINY)
