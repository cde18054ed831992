"""UNet and decoder as two stages: together the fused one, in each of the forms that a backend gets."""

import pytest
import torch

from talkinghead.nodes.core import kernel_ops
from talkinghead.nodes.core.engine_spec import compare
from talkinghead.nodes.core.rows import TorchOps
from talkinghead.nodes.musetalk import split_stages
from talkinghead.nodes.musetalk.engine import musetalk_stage
from talkinghead.nodes.musetalk.split_stages import decoder_stage, unet_stage

CPU = torch.device("cpu")


@pytest.fixture
def nets(tiny_model):
    return tiny_model.build()


@pytest.fixture
def given(nets):
    return musetalk_stage(nets, CPU)[0].sample(3, CPU)


def halves(nets):
    (unet_spec, unet), (decoder_spec, decoder) = unet_stage(nets, CPU), decoder_stage(nets, CPU)
    return unet_spec, unet, decoder_spec, decoder


def check(spec, outputs, rows=3):
    assert {t.name for t in spec.outputs} == set(outputs)
    for t in spec.outputs:
        assert (tuple(outputs[t.name].shape), outputs[t.name].dtype) == ((rows, *t.shape), t.dtype)


@torch.inference_mode()
def test_the_halves_are_the_whole(nets, given):
    unet_spec, unet, decoder_spec, decoder = halves(nets)
    unet_spec.check(given)
    drawn = unet(**given)
    check(unet_spec, drawn)
    shown = decoder(generated=drawn["generated"])
    check(decoder_spec, shown)
    whole = musetalk_stage(nets, CPU)[1](**given)
    assert torch.equal(shown["crops"], whole["crops"])
    assert drawn["finite"].all()
    assert shown["finite"].all()


@torch.inference_mode()
def test_each_half_flags_the_rows_that_are_not_finite(nets, given):
    _, unet, _, decoder = halves(nets)
    good = unet(**given)["generated"]
    given["latents"][1] = float("inf")
    drawn = unet(**given)
    assert drawn["finite"].tolist() == [True, False, True]
    # A form whose arithmetic hides a NaN (engines clamp) must still say that its input was none.
    hidden = split_stages._pictures(nets.vae.decode(good), drawn["generated"])
    assert hidden["finite"].tolist() == [True, False, True]
    assert decoder(generated=drawn["generated"])["finite"].tolist() == [True, False, True]


@torch.inference_mode()
def test_the_fast_forms_give_the_same(nets, given, monkeypatch):
    _, unet, _, decoder = halves(nets)
    assert unet.fast_form()[0] is None
    assert "NVIDIA card" in decoder.fast_form()[1]
    assert not unet.records_fast_form
    monkeypatch.setattr(split_stages, "_why_plain", lambda nets: None)
    monkeypatch.setattr(kernel_ops, "TritonOps", lambda device: TorchOps())
    fast_unet, fast_decoder = unet.fast_form()[0], decoder.fast_form()[0]
    drawn, wanted = fast_unet(**given), unet(**given)
    assert compare(drawn["generated"], wanted["generated"]).psnr_db > 80
    shown = fast_decoder(generated=wanted["generated"])
    assert compare(shown["crops"], decoder(generated=wanted["generated"])["crops"]).psnr_db > 60
    assert shown["finite"].all()
    assert drawn["finite"].all()
    assert not fast_decoder(generated=wanted["generated"] * float("nan"))["finite"].any()


@torch.inference_mode()
def test_the_forms_for_engine_files_give_the_same(nets, given):
    unet_spec, unet, decoder_spec, decoder = halves(nets)
    wanted = unet(**given)
    for spec, stage, inputs, outputs in (
        (unet_spec, unet, given, wanted),
        (decoder_spec, decoder, {"generated": wanted["generated"]}, decoder(generated=wanted["generated"])),
    ):
        form = stage.export_form()
        assert [str(t) for t in form.spec.inputs] == [str(t) for t in spec.inputs]
        [name] = [t.name for t in form.spec.outputs]
        made = form.finish({name: form.module(*(inputs[t.name] for t in form.spec.inputs))})
        check(spec, made)
        for key, value in outputs.items():
            assert torch.equal(made[key], value), key
