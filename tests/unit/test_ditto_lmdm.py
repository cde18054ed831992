"""LMDM of toy size: rows stand alone, tables move with the module, wrong files and shapes are named."""

from __future__ import annotations

import pytest
import torch
from ditto_motion_parts import TINY, tiny_lmdm
from safetensors.torch import save_file

from talkinghead.nodes.core.weights import load_strict, on_meta
from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig, load_lmdm


@pytest.fixture(scope="module")
def net():
    return tiny_lmdm()


def given(batch: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, TINY.window, TINY.motion_dim, generator=generator),
        torch.randn(batch, TINY.motion_dim, generator=generator),
        torch.randn(batch, TINY.window, TINY.cond_dim, generator=generator),
        torch.arange(batch) * 100 + 50,
    )


def test_rows_of_a_batch_stand_alone(net):
    inputs = given(4)
    together = net(*inputs)
    for row in range(4):
        alone = net(*(value[row : row + 1] for value in inputs))
        for a, b in zip(alone, together, strict=True):
            assert torch.allclose(a[0], b[row], atol=1e-4, rtol=1e-4)
    assert (together[1][0] - together[1][1]).abs().mean() > 0.05


def test_every_input_counts(net):
    inputs = given(1)
    wanted = net(*inputs)[1]
    for position in range(4):
        changed = list(inputs)
        changed[position] = changed[position] + (1 if position == 3 else 0.5)
        assert (net(*changed)[1] - wanted).abs().max() > 1e-4


def test_guidance_is_a_number_of_the_config(net):
    x, frame, cond, time = given(1)
    tokens, hidden = net.encode(cond)
    conditional, unconditional = net.predictions(x, frame, tokens, hidden, time).unbind(1)
    plain = LMDM(LMDMConfig(**{**TINY.to_dict(), "guidance": 1.0})).eval()
    plain.load_state_dict(net.state_dict())
    with torch.no_grad():
        assert torch.allclose(plain.denoise(x, frame, tokens, hidden, time), conditional, atol=1e-5)
    assert torch.allclose(
        net.denoise(x, frame, tokens, hidden, time), 2 * conditional - unconditional, atol=1e-5
    )
    assert not torch.allclose(conditional, unconditional, atol=1e-3)


def test_the_unconditional_pass_does_not_hear(net):
    x, frame, cond, time = given(1)
    for other in (cond, cond + 1):
        tokens, hidden = net.encode(other)
        made = net.predictions(x, frame, tokens, hidden, time)
        if other is cond:
            wanted = made
    assert torch.equal(made[:, 1], wanted[:, 1])
    assert not torch.equal(made[:, 0], wanted[:, 0])


def test_tables_are_buffers_and_not_in_the_file(net):
    """Upstream keeps them in a dict that stays on the device of the first call."""
    tables = {name.rpartition(".")[2] for name, _ in net.named_buffers()}
    assert tables == {"freqs", "cos", "sin", "noise_of_x", "noise_of_x0"}
    stored = {key.rpartition(".")[2] for key in net.state_dict()}
    assert not stored & {"cos", "sin", "noise_of_x", "noise_of_x0"}
    moved = LMDM(TINY).to("meta")
    assert all(value.is_meta for value in (*moved.buffers(), *moved.parameters()))
    assert moved.weights_device.type == "meta"


def test_a_file_in_halves_keeps_its_positions(net):
    """Frequencies rounded to halves would turn position 80 by up to 0.04 rad; the tables follow the formula."""
    halves = {key: value.half() for key, value in net.state_dict().items()}
    built = on_meta(LMDM, TINY)
    load_strict(built, halves, "halves", torch.float32)
    assert torch.equal(built.rotary.cos, net.rotary.cos)
    assert torch.equal(built.rotary.sin, net.rotary.sin)
    inputs = given(1)
    with torch.inference_mode():
        assert torch.allclose(built.eval()(*inputs)[1], net(*inputs)[1], atol=0.05)


def test_wrong_frequencies_are_refused(net):
    state = dict(net.state_dict())
    state["rotary.freqs"] = state["rotary.freqs"] * 2
    with pytest.raises(ValueError, match=r"rotary\.freqs is not 1 / 10000 \*\* \(2 i / 16\)"):
        load_strict(LMDM(TINY), state, "file")


@pytest.mark.parametrize(
    ("position", "shape", "said"),
    [
        (0, (2, 79, 208), r"needs motion \(batch, 80, 208\), got \(2, 79, 208\)"),
        (1, (1, 208), r"needs a condition frame \(2, 208\)"),
        (2, (2, 80, 33), r"needs a condition \(batch, 80, 34\), got \(2, 80, 33\)"),
        (3, (1,), r"a time \(2,\), got \(2, 208\) and \(1,\): give one for every row"),
    ],
)
def test_shapes_of_another_model(net, position, shape, said):
    inputs = list(given(2))
    inputs[position] = torch.zeros(shape)
    with pytest.raises(ValueError, match=said):
        net(*inputs)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("motion_dim", 0),
        ("n_layers", 65),
        ("latent_dim", 18),
        ("window", 80.0),
        ("guidance", -1),
        ("n_heads", True),
    ],
)
def test_config_out_of_range(field, value):
    with pytest.raises(ValueError, match=f"LMDMConfig.{field} is"):
        LMDMConfig(**{**TINY.to_dict(), field: value})


def test_config_as_plain_data():
    assert LMDMConfig.from_dict(TINY.to_dict()) == TINY
    with pytest.raises(ValueError, match="does not know depth: known are cond_dim"):
        LMDMConfig.from_dict({"depth": 3})


def test_the_official_layout_is_read(net, tmp_path):
    """Upstream stores the network under `model_state_dict`; re-saved files hold it alone, perhaps in halves."""
    state = net.state_dict()
    torch.save({"model_state_dict": state}, tmp_path / "lmdm_v0.4_hubert.pth")
    save_file({key: value.half() for key, value in state.items()}, tmp_path / "halves.safetensors")
    inputs = given(1)
    with torch.inference_mode():
        wanted = net(*inputs)[1]
        for name, atol in (("lmdm_v0.4_hubert.pth", 0), ("halves.safetensors", 0.05)):
            found = load_lmdm(tmp_path / name, TINY)
            assert {p.dtype for p in found.parameters()} == {torch.float32}
            assert not found.training
            assert torch.allclose(found(*inputs)[1], wanted, atol=atol, rtol=0)


def test_files_that_do_not_fit_are_named(net, tmp_path):
    state = dict(net.state_dict())
    path = tmp_path / "lmdm.pth"
    torch.save({"model_state_dict": {**state, "rotary.freqs": state["rotary.freqs"] * 2}}, path)
    with pytest.raises(ValueError, match=r"lmdm\.pth: rotary\.freqs is not"):
        load_lmdm(path, TINY)
    torch.save(state, path)
    with pytest.raises(ValueError, match=r"lmdm\.pth does not fit LMDM: 188 missing .*misshapen"):
        load_lmdm(path)
    with pytest.raises(ValueError, match=r"none\.pth is missing"):
        load_lmdm(tmp_path / "none.pth", TINY)


def test_pairs_are_turned_by_their_position(net):
    x = torch.randn(1, 82, 16, generator=torch.Generator().manual_seed(8))
    made = torch.view_as_complex(net.rotary(x).unflatten(-1, (8, 2)))
    angles = torch.arange(82)[:, None] * 10000.0 ** (-torch.arange(8) / 8)
    wanted = torch.view_as_complex(x.unflatten(-1, (8, 2))) * torch.polar(torch.ones(82, 8), angles)
    assert torch.allclose(made, wanted, atol=1e-5)
    assert torch.equal(net.rotary(x[:, :80]), net.rotary(x)[:, :80])
