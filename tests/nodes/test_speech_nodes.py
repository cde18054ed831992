"""Normalize Text and Master Speech, in process."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from support import ROOT

pytestmark = pytest.mark.comfy

RATE = 24000


def voice(seconds=2.0, rate=RATE, channels=1, batch=1, level=0.05):
    """Return an AUDIO of syllables: 180 Hz and its harmonics, on and off four times a second."""
    t = np.arange(round(seconds * rate)) / rate
    tone = sum(np.sin(2 * np.pi * 180 * k * t) / k for k in range(1, 8))
    wave = level * tone * (np.sin(2 * np.pi * 4 * t) > -0.3)
    return {
        "waveform": torch.from_numpy(wave.astype(np.float32)).expand(batch, channels, -1),
        "sample_rate": rate,
    }


def master(run_node, audio=None, **more):
    return run_node("TalkingHeadMasterSpeech", audio=voice() if audio is None else audio, **more).result


OFF = {
    "target_lufs": 0.0,
    "ceiling_dbtp": 0.0,
    "deess_db": 0.0,
    "room_tone_dbfs": 0.0,
    "lowpass_hz": 0.0,
    "fricative_ms": 0.0,
    "duck_db": 0.0,
    "clean_ends": False,
}


class TestMaster:
    def test_speech_reaches_its_loudness_below_the_ceiling(self, run_node):
        from talkinghead.nodes.tts.mastering.levels import LevelMeter

        audio = voice(3.0)
        kept = audio["waveform"].clone()
        sound, picture, report = master(run_node, audio)
        assert sound["sample_rate"] == RATE
        assert sound["waveform"].shape == kept.shape
        assert sound["waveform"].dtype == torch.float32
        meter = LevelMeter(RATE, 1)
        meter.feed(sound["waveform"][0].numpy())
        levels = meter.finish()
        assert levels.lufs == pytest.approx(-16, abs=0.3)
        assert levels.true_peak_dbtp <= -1
        assert torch.equal(audio["waveform"], kept)  # the input belongs to other nodes too
        assert picture.shape == (1, 480, 960, 3)
        assert 0 <= float(picture.min()) < float(picture.max()) <= 1
        assert "before mastering: " in report
        assert "after mastering: -16.0 LUFS" in report

    def test_with_every_stage_off_the_samples_are_the_same(self, run_node):
        for channels in (1, 2):
            audio = voice(0.5, channels=channels)
            sound, _, report = master(run_node, audio, **OFF)
            assert torch.equal(sound["waveform"], audio["waveform"])
            assert "limiter" not in report

    @pytest.mark.parametrize("stage", sorted(set(OFF) - {"duck_db", "clean_ends"}))
    def test_each_stage_goes_off_by_itself(self, run_node, stage):
        from talkinghead.nodes.tts.master_nodes import master_options
        from talkinghead.nodes.tts.mastering.options import MasterOptions

        names = {"fricative_ms": "fricative_s"}
        off = master_options(**{stage: 0.0})
        assert getattr(off, names.get(stage, stage)) is None
        changed = [
            n for n in MasterOptions.__dataclass_fields__ if getattr(off, n) != getattr(MasterOptions(), n)
        ]
        assert changed == [names.get(stage, stage)]

    def test_the_ends_are_clean_unless_left_as_they_are(self, run_node):
        audio = voice(0.5)
        audio["waveform"] = audio["waveform"].clone() + 0.0
        audio["waveform"][..., :40] = 0.2
        only = OFF | {"clean_ends": True}
        assert float(master(run_node, audio, **only)[0]["waveform"][0, 0, 0]) == 0
        assert float(master(run_node, audio, **OFF)[0]["waveform"][0, 0, 0]) == pytest.approx(0.2)

    @pytest.mark.parametrize("rate", [RATE, 16000, 48000])
    def test_a_second_sound_of_any_rate_is_ducked_under_the_first(self, run_node, rate):
        first = voice(1.0)
        t = torch.arange(3 * rate) / rate
        second = {"waveform": (0.1 * torch.sin(2 * np.pi * 1000 * t)).expand(1, 2, -1), "sample_rate": rate}
        given = OFF | {"duck_db": 12.0}
        sound, _, report = master(run_node, first, second_audio=second, **given)
        assert sound["waveform"].shape == (1, 2, 3 * RATE)

        def level(start, end):  # of the 1 kHz tone alone
            x = sound["waveform"][0, 0, round(start * RATE) : round(end * RATE)].double().numpy()
            return 2 * abs(np.mean(x * np.exp(-2j * np.pi * 1000 * np.arange(len(x)) / RATE)))

        assert level(2.0, 2.8) == pytest.approx(0.1, rel=0.01)
        assert level(0.3, 0.8) == pytest.approx(0.1 * 10 ** (-12 / 20), rel=0.1)
        assert (f"brought from {rate} to {RATE} Hz" in report) == (rate != RATE)

    def test_batches_and_many_channels_are_refused_by_name(self, run_node):
        with pytest.raises(ValueError, match="audio: .*batch of 2 clips; give one at a time"):
            master(run_node, voice(0.2, batch=2))
        with pytest.raises(ValueError, match="audio has 6 channels; mastering takes mono or stereo"):
            master(run_node, voice(0.2, channels=6))
        with pytest.raises(ValueError, match="second_audio has 3 channels"):
            master(run_node, second_audio=voice(0.2, channels=3))
        with pytest.raises(ValueError, match="second_audio: .*batch of 2"):
            master(run_node, second_audio=voice(0.2, batch=2))
        with pytest.raises(ValueError, match="audio: .*no samples"):
            master(run_node, {"waveform": torch.zeros(1, 1, 0), "sample_rate": RATE})
        with pytest.raises(ValueError, match="4000 Hz cannot be mastered"):
            master(run_node, voice(0.2, rate=4000))

    def test_audio_of_other_packs_whatever_its_type(self, run_node):
        plain = voice(0.3)
        want = master(run_node, plain)[0]["waveform"]

        class Lazy(dict):
            def __missing__(self, key):
                return plain[key]

        grown = plain["waveform"].double().requires_grad_()
        for audio in (Lazy(), {"waveform": grown, "sample_rate": RATE}):
            assert torch.allclose(master(run_node, audio)[0]["waveform"], want, atol=1e-4)
        broken = plain["waveform"].clone()
        broken[0, 0, 100] = float("nan")
        sound, _, report = master(run_node, {"waveform": broken, "sample_rate": RATE})
        assert torch.isfinite(sound["waveform"]).all()
        assert "1 NaN or Inf samples" in report

    def test_silence_stays_quiet_and_is_reported(self, run_node):
        audio = {"waveform": torch.zeros(1, 1, RATE), "sample_rate": RATE}
        sound, picture, report = master(run_node, audio)
        assert float(sound["waveform"].abs().max()) < 0.01
        assert "it was not brought to -16 LUFS" in report
        assert torch.isfinite(picture).all()

    def test_values_between_off_and_the_range_are_refused_before_anything_runs(self, node_classes):
        check = node_classes["TalkingHeadMasterSpeech"].validate_inputs
        assert check() is True
        assert check(target_lufs=-23.0, room_tone_dbfs=0.0, lowpass_hz=0.0, fricative_ms=65.0) is True
        assert check(target_lufs=None, ceiling_dbtp=None) is True  # wired: not known yet
        assert check(target_lufs=-2.0) == "target_lufs -2.0 is outside -50..-5, or 0 for off"
        assert "room_tone_dbfs -10.0 is outside -90..-30" in check(room_tone_dbfs=-10.0)
        assert "fricative_s 0.01 is outside" in check(fricative_ms=10.0)

    def test_rare_widgets_are_behind_show_advanced(self, node_classes):
        inputs = node_classes["TalkingHeadMasterSpeech"].GET_SCHEMA().inputs
        hidden = [i.id for i in inputs if i.as_dict().get("advanced")]
        assert hidden == ["lowpass_hz", "fricative_ms", "clean_ends"]


class TestNormalize:
    @pytest.fixture(autouse=True)
    def needs_the_extra(self):
        pytest.importorskip("unicode_rbnf", reason="the extra `tts` is not installed")
        pytest.importorskip("sentencex", reason="the extra `tts` is not installed")

    def run(self, run_node, text, **more):
        return run_node("TalkingHeadNormalizeText", text=text, **more).result

    def test_text_in_words_with_the_reasons(self, run_node):
        said = "The yield rose 2.5% today. [pause:0.5] Then it fell."
        text, changes = self.run(run_node, said, language="en")
        assert text == "The yield rose two point five percent today. [pause:0.5] Then it fell."
        assert changes == (
            "U1 percent: '2.5%' -> 'two point five percent' (decimal and percent sign in words, as one unit)"
        )
        assert self.run(run_node, text, language="en") == (text, "nothing changed")

    def test_auto_says_which_language_it_took(self, run_node):
        assert "language: en (recognised" in self.run(run_node, "The yield rose 2.5% today.")[1]
        assert "language: es (recognised" in self.run(run_node, "Sube el IPC un 2,5 % hoy.")[1]
        text, changes = self.run(run_node, "Madrid 3,500")
        assert text == "Madrid three thousand five hundred"
        assert (
            "warning: the language was taken for English on weak evidence" not in changes
        )  # 3,500 is a sign
        assert "weak evidence" in self.run(run_node, "Madrid Barcelona Sevilla")[1]
        assert "recognised" not in self.run(run_node, "Madrid", language="es")[1]

    def test_what_is_not_spoken_is_a_warning(self, run_node):
        text, changes = self.run(run_node, "All is well today \N{GRINNING FACE}.")
        assert "\N{GRINNING FACE}" not in text
        assert "warning: not spoken: \N{GRINNING FACE}" in changes

    def test_the_language_decides_how_a_date_is_read(self, run_node):
        said = "It was signed on 3/4/2025."
        assert "March fourth" in self.run(run_node, said, language="en")[0]
        assert "April" in self.run(run_node, said, language="en-GB")[0]
        assert "coma" in self.run(run_node, "Subió un 2,5 % hoy.")[0]

    def test_each_wording_rule_has_its_own_switch_and_is_off(self, run_node):
        texts = {
            "exclamations": "Breaking! The bridge is closed to all traffic.",
            "quotations": 'The minister said "we will not raise taxes this year" and left.',
            "brand_nouns": "Hoy Apple presentó sus resultados del año.",
        }
        for rule, text in texts.items():
            plain = self.run(run_node, text)[0]
            for other in texts:
                made, changes = self.run(run_node, text, **{other: True})
                assert (made != plain) == (other == rule), (rule, other, made)
            assert f"U{5 + list(texts).index(rule)}" in self.run(run_node, text, **{rule: True})[1]

    def test_a_glossary_of_the_input_folder_and_its_changes(self, run_node, node_classes, comfy_base):
        cls = node_classes["TalkingHeadNormalizeText"]
        folder = comfy_base / "input"
        folder.mkdir(exist_ok=True)
        file = folder / "names.json"
        file.write_text(json.dumps({"say": {"en": {"Xyloq": "zai lock"}}}), "utf-8")
        glossary = next(i for i in cls.GET_SCHEMA().inputs if i.id == "glossary")
        assert glossary.as_dict()["options"][0] == "none"
        assert "names.json" in glossary.as_dict()["options"]
        before = cls.fingerprint_inputs(glossary="names.json")
        assert cls.validate_inputs(glossary="names.json") is True
        assert "zai lock" in self.run(run_node, "The firm Xyloq is here now.", glossary="names.json")[0]
        assert "Xyloq" in self.run(run_node, "The firm Xyloq is here now.")[0]
        file.write_text(json.dumps({"say": {"en": {"Xyloq": "ksai lock"}}}), "utf-8")
        assert cls.fingerprint_inputs(glossary="names.json") != before
        assert "ksai lock" in self.run(run_node, "The firm Xyloq is here now.", glossary="names.json")[0]
        file.write_text("{", "utf-8")
        assert "names.json is not JSON" in cls.validate_inputs(glossary="names.json")
        assert "no file or folder '../x.json'" in cls.validate_inputs(glossary="../x.json")

    def test_the_glossary_of_the_page_can_be_read(self, run_node, comfy_base):
        page = (ROOT / "web" / "docs" / "TalkingHeadNormalizeText.md").read_text("utf-8")
        [block] = re.findall(r"(?m)^    \{.*(?:\n     .*)+", page)
        (comfy_base / "input" / "page.json").write_text(block, "utf-8")
        given = {"glossary": "page.json", "language": "es", "brand_nouns": True}
        text = self.run(run_node, "Hoy Apple y Nvidia suben en el IBEX 35.", **given)[0]
        assert "la firma Apple" in text
        assert "treinta y cinco" in text

    @pytest.mark.parametrize("text", ["", " \n", "...", "[pause:1]"])
    def test_empty_text_is_refused(self, run_node, text):
        with pytest.raises(ValueError, match="nothing to say"):
            self.run(run_node, text)

    def test_a_wrong_tag_is_refused(self, run_node):
        with pytest.raises(ValueError, match="did you mean"):
            self.run(run_node, "Good [pauze:1] evening to all.")
