"""FP8 layers: quantised by what they see, kept only while the pictures stay close enough."""

import pytest
import torch

from talkinghead.nodes.core.rows import ConvWeight, Grid, LinearWeight, TorchOps
from talkinghead.nodes.musetalk import fast_fp8
from talkinghead.nodes.musetalk.engine import MuseTalkStage, musetalk_stage
from talkinghead.nodes.musetalk.fast import fast_nets
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.model import load_embedded


@pytest.fixture(scope="module")
def nets():
    return load_embedded()


@pytest.fixture(scope="module")
def sample(nets):
    return fast_fp8.calibration_inputs(nets)


@pytest.fixture
def given(sample):
    """Half of it: every measurement is a run of the networks."""
    return tuple(part[::2] for part in sample)


@pytest.fixture
def every_layer(monkeypatch):
    """The embedded layers are too narrow to gain; here they count."""
    monkeypatch.setattr(fast_fp8, "_quick", lambda slot: True)


def stored(fast):
    return {slot.title: slot.weight for slot in fast_fp8._slots(fast)}


def test_weights_and_input_come_back_within_three_bits_of_mantissa():
    torch.manual_seed(0)
    kernel = torch.randn(6, 4, 3, 3) * torch.logspace(-3, 1, 6)[:, None, None, None]
    weight = ConvWeight.of(kernel).quantised(0.5)
    assert weight.rows.dtype == torch.float8_e4m3fn
    back = weight.rows.float() * weight.scale[:, None] / 0.5
    wanted = ConvWeight.of(kernel).rows
    # Half a step is 2**-4 of the number; below a line's 2**-15th part e4m3 has no normal numbers.
    assert ((back - wanted).abs() <= wanted.abs() / 16 + wanted.abs().amax(1, keepdim=True) / 2**15).all()
    x = torch.tensor([[0.1, -3.0, 500.0, -1e9]])
    assert TorchOps().quantise(x, 0.5).float().mul(0.5).tolist()[0][1:] == [-3.0, 224.0, -224.0]


def test_a_quantised_convolution_is_the_convolution_of_what_is_stored():
    torch.manual_seed(1)
    ops, grid = TorchOps(), Grid(2, 4, 8)
    x, bias, skip = torch.randn(grid.rows, 8), torch.randn(6), torch.randn(grid.rows, 6)
    for weight in (ConvWeight.of(torch.randn(6, 8, 3, 3)), ConvWeight.doubling_of(torch.randn(6, 8, 3, 3))):
        exact, coarse = weight, weight.quantised(0.01)
        stored_x = ops.quantise(x, 0.01)
        if weight.doubling:
            pairs = ops.conv_double(x, exact, bias, grid), ops.conv_double(stored_x, coarse, bias, grid)
        else:
            pairs = ops.conv_add(x, exact, bias, skip, grid), ops.conv_add(stored_x, coarse, bias, skip, grid)
        (wanted, _), (got, _) = pairs
        assert got.dtype == wanted.dtype == torch.float32
        assert 0 < (got - wanted).norm() / wanted.norm() < 0.05


def test_a_quantised_product_keeps_its_bias():
    torch.manual_seed(2)
    ops, x = TorchOps(), torch.randn(5, 16)
    weight = LinearWeight.of(torch.randn(8, 16), torch.randn(8) * 100)
    wanted = ops.linear(x, weight)
    got = ops.linear(ops.quantise(x, 0.02), weight.quantised(0.02))
    assert 0 < (got - wanted).norm() < 0.1 * (wanted - weight.bias).norm()


def test_everything_is_kept_while_it_is_close_enough(nets, given, every_layer):
    fast = fast_nets(nets, TorchOps())
    outcome = fast_fp8.quantise(fast, given)
    assert len(outcome.layers) == outcome.n_layers > 40
    assert 45 <= outcome.psnr_db < 60
    assert all(getattr(w, "step", None) for w in stored(fast).values())
    assert f"{outcome.n_layers} of {outcome.n_layers} layers in fp8" in outcome.text


def test_only_what_fits_under_a_stricter_limit_is_kept(nets, given, monkeypatch):
    monkeypatch.setattr(fast_fp8, "_quick", lambda slot: "decoder up" in slot.title)
    fast = fast_nets(nets, TorchOps())
    outcome = fast_fp8.quantise(fast, given, least_db=55)
    assert 0 < len(outcome.layers) < outcome.n_layers
    assert outcome.psnr_all_db < 55 <= outcome.psnr_db
    with_step = {title for title, weight in stored(fast).items() if weight.step is not None}
    assert with_step == set(outcome.layers)


def test_nothing_is_kept_if_nothing_is_close_enough(nets, given, every_layer):
    fast = fast_nets(nets, TorchOps())
    before = fast(*given)
    outcome = fast_fp8.quantise(fast, given, least_db=500)
    assert outcome.layers == ()
    assert "at least 500 dB" in outcome.text
    assert "fp16 runs" in outcome.text
    assert torch.equal(fast(*given), before)


def test_pictures_that_are_not_finite_are_not_close(nets, given, monkeypatch):
    """A layer that overflows beside others must not pass because NaN compares with nothing."""
    chosen = []
    monkeypatch.setattr(fast_fp8, "_quick", lambda slot: "decoder up" in slot.title)
    monkeypatch.setattr(
        fast_fp8, "_choose", lambda slots, *_: chosen.append([s.quantise() for s in slots]) or list(slots)
    )
    fast = fast_nets(nets, TorchOps())
    real = fast.decoder.ops.conv_add

    def overflows(x, weight, *rest):
        made, sums = real(x, weight, *rest)
        return (made * float("nan") if weight.step is not None else made), sums

    monkeypatch.setattr(fast.ops, "conv_add", overflows, raising=False)
    outcome = fast_fp8.quantise(fast, given)
    assert chosen
    assert not any(title.endswith("conv2") for title in outcome.layers)
    assert fast(*given).isfinite().all()


def test_without_a_layer_that_gains_the_report_says_so(nets, given, monkeypatch):
    monkeypatch.setattr(fast_fp8, "_quick", lambda slot: False)
    assert "large enough" in fast_fp8.quantise(fast_nets(nets, TorchOps()), given).text


def test_narrow_layers_are_left_in_fp16(nets, given):
    assert fast_fp8.quantise(fast_nets(nets, TorchOps()), given).n_layers < 20


def test_the_calibration_sample_looks_like_a_run(sample):
    latents, tokens = sample
    assert latents.shape[1:] == (8, 16, 16)
    assert latents.isfinite().all()
    assert 0.3 < float(latents.std()) < 3
    assert all(not torch.equal(latents[0], latents[row]) for row in (1, 2, 3))
    silence, vowel = tokens[3], tokens[0]
    assert (silence - vowel).abs().mean() > 0.05


def test_fp8_is_a_precision_of_the_loader_that_loads_fp16():
    built = MuseTalkModel(precision="fp8").build()
    assert built.wants_fp8
    assert built.weights_dtype == torch.float16
    assert not MuseTalkModel(precision="fp16").build().wants_fp8
    assert MuseTalkModel(precision="fp8").key != MuseTalkModel(precision="fp16").key
    with pytest.raises(ValueError, match="inductor has no fp8; choose backend auto or cuda graph"):
        MuseTalkModel(precision="fp8", backend="inductor")


def test_the_fast_form_says_what_became_of_it(nets, monkeypatch, every_layer):
    """On the CPU with the torch operations in place of the kernels; old cards and no memory are told."""
    monkeypatch.setattr("talkinghead.nodes.musetalk.fast.why_plain", lambda nets: None)
    monkeypatch.setattr("talkinghead.nodes.musetalk.fast.TritonOps", lambda device: TorchOps())
    monkeypatch.setattr("talkinghead.nodes.musetalk.fast.why_not", lambda device: None)
    monkeypatch.setattr(nets, "wants_fp8", True)
    spec, stage = musetalk_stage(nets, torch.device("cpu"))
    assert isinstance(stage, MuseTalkStage)
    notes = []
    for capability, error in (
        ((9, 0), None),
        ((8, 9), None),
        ((9, 0), torch.OutOfMemoryError("CUDA out of memory")),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        if error:
            monkeypatch.setattr(fast_fp8, "_exact_pictures", lambda *a, e=error: (_ for _ in ()).throw(e))
        function, reason = stage.fast_form()
        assert reason is None
        assert set(function(**spec.sample(2, torch.device("cpu"), 0))) == {"crops", "finite"}
        notes.append(stage.fast_note)
    assert "layers in fp8" in notes[0]
    assert "9.0" in notes[1]
    assert "no memory" in notes[2]
