"""`talkinghead speak` with its options: rules, tags, dialogue, mastering; without them it is as it was."""

import json

import numpy as np
import pytest
import soundfile as sf
from speech_fakes import RATE, ToneEngine

from talkinghead.cli import main
from talkinghead.nodes.tts import engines
from talkinghead.nodes.tts.mastering.levels import LevelMeter
from talkinghead.nodes.tts.takes import SpeechOptions, join_takes, takes


@pytest.fixture
def tone(monkeypatch, tmp_path):
    engine = ToneEngine()
    monkeypatch.setattr(engines, "engine_for", lambda voice, roots=(): engine)
    monkeypatch.chdir(tmp_path)
    return engine


def speak(capsys, text, *options):
    code = main(["speak", "--voice", "tone", "--text", text, "--out", "s.wav", *options])
    out, err = capsys.readouterr()
    return code, out, err


def test_without_options_nothing_is_read_into_the_text(tone, tmp_path, capsys):
    assert speak(capsys, "One [pause:1] 2 %.")[0] == 0
    assert [a[0] for a in tone.asked] == ["One [pause:1] 2 %."]
    expected = engines.speak("One [pause:1] 2 %.", "tone").samples[0]
    got, rate = sf.read("s.wav", dtype="float32")
    assert rate == RATE
    np.testing.assert_allclose(got, expected, atol=2**-15)


def test_normalize_shows_what_it_changed(tone, capsys):
    code, out, _ = speak(capsys, "It rose 42.5 % now.", "--normalize", "en", "--show-changes")
    assert code == 0
    assert tone.asked[0][0] == "It rose forty-two point five percent now."
    assert "'42.5 %' -> 'forty-two point five percent'" in out
    code, out, _ = speak(capsys, "It rose 42.5 % now 😀.", "--normalize")
    assert "forty" not in out
    assert "warning: not spoken: 😀" in out


def test_tags_sounds_and_dialogue(tone, tmp_path, capsys):
    (tmp_path / "fx").mkdir()
    sf.write(tmp_path / "fx" / "bell.wav", np.full(400, 0.1), RATE)
    text = "one [pause:0.1] two [sfx:bell.wav] [speaker:B]three"
    options = ("--dialogue", "A=tone: x, b=tone: y", "--sounds", "fx", "--json")
    code, out, err = speak(capsys, text, *options)
    assert code == 0, err
    said = json.loads(out)
    assert said["voices"] == "narrator: tone, B: tone: y"
    assert said["duration_s"] == pytest.approx((3 * 160 + 800 + 400 + 1600) / RATE, abs=1e-3)
    assert [a[1] for a in tone.asked] == ["tone", "tone", "tone: y"]


def test_master_reaches_its_loudness(tone, capsys):
    tone.rate = 24000
    code, out, _ = speak(capsys, "word " * 100, "--master", "-20", "--json")
    assert code == 0
    assert "-20.0 LUFS" in json.loads(out)["after mastering"]
    text = "word " * 100
    plain = join_takes(takes(text, SpeechOptions("tone", normalize=False, tags=False)))
    assert sf.info("s.wav").frames == plain.n_samples


@pytest.mark.parametrize("off", ["0", "off", "Off"])
def test_master_off_leaves_the_loudness(tone, capsys, off):
    code, out, _ = speak(capsys, "word " * 100, "--master", off, "--json")
    assert code == 0
    said = json.loads(out)
    before, after = (float(said[f"{when} mastering"].split(" LUFS")[0]) for when in ("before", "after"))
    assert after == pytest.approx(before, abs=0.15)
    assert "limiter" in said
    assert said["report"]["warnings"] in ([], {})


def test_before_mastering_is_the_sound_without_it(tone, capsys):
    tone.rate = 24000
    speak(capsys, "word " * 100, "--tags")
    meter, (samples, rate) = LevelMeter(24000, 1), sf.read("s.wav", dtype="float32")
    meter.feed(samples[None])
    _, out, _ = speak(capsys, "word " * 100, "--tags", "--master", "--json")
    assert (rate, json.loads(out)["before mastering"]) == (24000, str(meter.finish()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--show-changes",), "goes with --normalize"),
        (("--dialogue", "A"), "'A' is not NAME=VOICE"),
        (("--dialogue", "A=tone,=tone"), "'=tone' is not NAME=VOICE"),
        (("--dialogue", "A=tone,a=tone"), "two voices for 'a'"),
        (("--dialogue", "A=tone"), "no voice for the speaker 'Zed'"),
        (("--tags", "--sounds", "."), "no voice for the speaker 'Zed'"),
        (
            ("--master", "3"),
            "--master '3' is no loudness: give -50 to -5 LUFS (-16 online, -23 or -24 on air), or off",
        ),
        (("--master", "-51"), "--master '-51' is no loudness"),
        (("--master", "nan"), "--master 'nan' is no loudness"),
        (("--master", "loud"), "--master 'loud' is no loudness"),
    ],
)
def test_wrong_options_are_refused_before_a_word(tone, tmp_path, capsys, options, says):
    code, _, err = speak(capsys, "[speaker:Zed]Hello there you.", *options)
    assert code == 2
    assert says in err
    assert not tone.asked
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "says"), [("gone.wav", "no file"), ("../x.wav", "outside the folder")])
def test_sounds_stay_in_their_folder(tone, capsys, name, says):
    code, _, err = speak(capsys, f"[sfx:{name}] Hello.", "--tags")
    assert code == 2
    assert says in err


def test_the_command_line_says_what_the_tags_are(tone, capsys):
    code, _, err = speak(capsys, "[puse:1] Hello.", "--tags")
    assert code == 2
    assert "did you mean [pause]?" in err
