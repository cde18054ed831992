"""Ditto's model as one: saved, loaded, cast, refused where parts do not fit; the handle and what it says is missing."""

from __future__ import annotations

import pytest
import torch
from ditto_model_parts import TINY_MODEL, tiny_modules
from ditto_parts import official_states, save_official

from talkinghead.nodes.core.models import MissingModel
from talkinghead.nodes.ditto import handle as handle_module
from talkinghead.nodes.ditto.handle import DittoModel, available, describe
from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig
from talkinghead.nodes.ditto.model import (
    OFFICIAL_MODEL,
    DittoModelConfig,
    load_modules,
    load_official_modules,
    save_modules,
)
from talkinghead.nodes.ditto.official import find_official


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_modules(tiny_modules(), folder, torch.float32)
    return folder


@pytest.fixture
def embedded(saved, monkeypatch):
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", saved)
    return DittoModel()


def test_saved_and_loaded_is_the_same(saved):
    wanted, found = tiny_modules().state_dict(), load_modules(saved).state_dict()
    assert list(wanted) == list(found)
    assert all(torch.equal(found[key], value) for key, value in wanted.items())
    assert load_modules(saved).config == TINY_MODEL


def test_in_halves_only_pictures_are(saved):
    half = load_modules(saved, torch.float16)
    assert half.weights_dtype == half.nets.warp.fourth.weight.dtype == torch.float16
    exact = [half.nets.motion, half.nets.stitch, half.lmdm, half.speech]
    assert {p.dtype for part in exact for p in part.parameters()} == {torch.float32}


def test_speech_rows_of_a_window(saved):
    speech = load_modules(saved).speech
    assert speech(torch.zeros(2, 6480)).shape == (2, 20, TINY_MODEL.speech_width)
    with pytest.raises(ValueError, match="6480"):
        speech(torch.zeros(2, 6400))


def test_a_config_whose_parts_do_not_fit_is_refused():
    with pytest.raises(ValueError, match="motion_dim is 265"):
        DittoModelConfig("x", TINY_MODEL.nets, LMDMConfig(), TINY_MODEL.speech)
    with pytest.raises(ValueError, match="JSON object with"):
        DittoModelConfig.from_dict({"name": "x"})
    assert DittoModelConfig.from_dict(OFFICIAL_MODEL.to_dict()) == OFFICIAL_MODEL


def test_the_official_files_become_the_model(tmp_path):
    folder = tmp_path / "ditto"
    save_official(folder, official_states())
    net = LMDM(TINY_MODEL.lmdm)
    torch.save({"model_state_dict": net.state_dict()}, folder / "lmdm_v0.4_hubert.pth")
    config = DittoModelConfig("tiny", TINY_MODEL.nets, TINY_MODEL.lmdm, TINY_MODEL.speech)
    made = load_official_modules(find_official((tmp_path,)), config=config)
    assert all(torch.equal(made.lmdm.state_dict()[k], v) for k, v in net.state_dict().items())


def test_the_handle_builds_and_names_what_it_depends_on(embedded):
    modules = embedded.build()
    assert modules.config == embedded.config
    assert not modules.training
    assert len(embedded.identity) == 64
    assert embedded.engine_identity.weights_sha256() != embedded.identity
    assert embedded.hubert is None


@pytest.mark.parametrize("wrong", [{"checkpoint": "dito"}, {"precision": "fp8"}, {"backend": "gpu"}])
def test_unknown_names_are_refused(wrong):
    with pytest.raises(ValueError, match="unknown"):
        DittoModel(**wrong)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(MissingModel, match=r"warp_network.pth.*hubert_streaming_fix_kv.onnx \(1.46 GB\)"):
        DittoModel("ditto", roots=(tmp_path,))
    save_official(tmp_path / "ditto", official_states())
    with pytest.raises(MissingModel, match="hubert_streaming_fix_kv.onnx"):
        DittoModel("ditto", roots=(tmp_path,))
    embedded, official = available((tmp_path,))
    assert embedded.ready
    assert official.missing == ("ditto/hubert_streaming_fix_kv.onnx",)
    assert "1.46 GB" in describe((tmp_path,))
    assert "models download ditto" in describe((tmp_path,))
    (tmp_path / "ditto/hubert.onnx").touch()
    assert available((tmp_path,))[1].ready
