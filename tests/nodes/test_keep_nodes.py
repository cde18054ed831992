"""Keep Speech, in process: who is asked for what, and what comes out."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.comfy

NODE = "TalkingHeadKeepSpeech"


def clip(seed=0, n=1200, rate=24000, batch=1, dtype=torch.float32):
    wave = torch.rand(batch, 1, n, generator=torch.Generator().manual_seed(seed)) - 0.5
    return {"waveform": wave.to(dtype), "sample_rate": rate}


@pytest.fixture
def kept(node_classes, comfy_base):
    """The folder of the takes, empty."""
    folder = comfy_base / "models" / "talkinghead" / "tts" / "kept"
    for path in folder.glob("*") if folder.is_dir() else ():
        path.unlink()
    return folder


def test_the_engine_is_asked_once(run_node, node_classes, kept):
    ask = node_classes[NODE].check_lazy_status
    assert ask(key="one") == ["audio"]
    assert ask(key="one", audio=clip()) == []
    made, report = run_node(NODE, key="one", audio=clip()).result
    assert report == "take: made and kept, 0.05 s at 24000 Hz"
    assert [p.suffix for p in kept.iterdir()] == [".safetensors"]
    assert ask(key="one", audio=None) == []
    found, report = run_node(NODE, key="one").result
    assert report == "take: from disk, 0.05 s at 24000 Hz; the engine did not run"
    assert torch.equal(made["waveform"], clip()["waveform"])
    assert torch.equal(found["waveform"], made["waveform"])
    assert found["waveform"].dtype == torch.float32
    assert found["sample_rate"] == 24000
    assert ask(key="two") == ["audio"]


def test_the_reference_is_part_of_the_key(run_node, node_classes, kept):
    ask = node_classes[NODE].check_lazy_status
    run_node(NODE, key="same", audio=clip(1), reference=clip(8))
    assert ask(key="same", reference=clip(8)) == []
    assert ask(key="same", reference=clip(9)) == ["audio"]
    assert ask(key="same") == ["audio"]
    run_node(NODE, key="same", audio=clip(2), reference=clip(9))
    again = run_node(NODE, key="same", reference=clip(8)).result[0]
    assert torch.equal(again["waveform"], clip(1)["waveform"])


def test_a_damaged_take_is_made_anew_and_said(run_node, node_classes, kept):
    run_node(NODE, key="one", audio=clip())
    [path] = kept.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert node_classes[NODE].check_lazy_status(key="one") == ["audio"]
    sound, report = run_node(NODE, key="one", audio=clip(5)).result
    assert "take: made and kept" in report
    assert "warning: kept take" in report
    assert torch.equal(sound["waveform"], clip(5)["waveform"])
    assert torch.equal(run_node(NODE, key="one").result[0]["waveform"], sound["waveform"])


def test_what_cannot_be_kept_is_passed_on(run_node, kept):
    bad = clip()
    bad["waveform"][0, 0, 3] = float("inf")
    sound, report = run_node(NODE, key="one", audio=bad).result
    assert torch.equal(sound["waveform"], bad["waveform"])
    assert "the take is not kept: it has samples that are not finite" in report
    assert not kept.is_dir() or list(kept.iterdir()) == []


def test_the_output_is_memory_of_its_own(run_node, kept):
    given = clip()
    made = run_node(NODE, key="one", audio=given).result[0]
    given["waveform"].zero_()
    assert torch.equal(made["waveform"], clip()["waveform"])


def test_what_is_wrong_is_said(run_node, node_classes, kept):
    check = node_classes[NODE].validate_inputs
    assert "key is empty" in check(key=" \n")
    assert check(key="x") is True
    assert check(key=None) is True  # wired: not known yet
    with pytest.raises(ValueError, match="key is empty"):
        run_node(NODE, key="", audio=clip())
    with pytest.raises(ValueError, match="no audio came from the engine"):
        run_node(NODE, key="never made")
    with pytest.raises(ValueError, match="batch of 2 clips"):
        run_node(NODE, key="x", audio=clip(batch=2))
    with pytest.raises(ValueError, match="no samples"):
        run_node(NODE, key="x", audio=clip(n=0))


def test_the_audio_is_lazy_and_the_key_has_room(node_classes):
    inputs = {i.id: i for i in node_classes[NODE].GET_SCHEMA().inputs}
    assert list(inputs) == ["audio", "key", "reference"]
    assert (inputs["audio"].lazy, inputs["reference"].optional, inputs["key"].multiline) == (True, True, True)
