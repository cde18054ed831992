"""`talkinghead speak` with its options: rules, tags, dialogue, mastering; without them it is as it was."""

import io
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
    assert "language: en (recognised" in out
    assert "warning: not spoken: 😀" in out


def test_normalize_obeys_tags_as_the_node_does(tone, capsys):
    text = "It rose 2 %. [pause:0.1] It fell [rate:slow]then[/rate]."
    assert speak(capsys, text, "--normalize", "en")[0] == 0
    assert [a[0] for a in tone.asked] == ["It rose two percent.", "It fell", "then"]


def test_tags_that_nobody_obeys_are_named(tone, capsys):
    for options in ((), ("--master",)):
        code, out, _ = speak(capsys, "One two three [pause:0.1] " + "four " * 40, *options)
        assert code == 0
        assert "warning: tags are read as words here: [pause:0.1]" in out
    assert "tags are" not in speak(capsys, "One two three [pause:0.1] four.", "--tags")[1]
    assert "tags are" not in speak(capsys, "One two three [sic] four.")[1]


def test_plain_speech_tells_what_it_drops(tone, capsys):
    assert "warning: not spoken: 😀" in speak(capsys, "Good 😀 evening.")[1]


@pytest.mark.parametrize(
    ("tag", "text", "said"),
    [
        ("en-GB", "It was 3/4/2026 then.", "It was the third of April, twenty twenty-six then."),
        ("es-MX", "Subió un 3.5 % hoy.", "Subió un tres punto cinco por ciento hoy."),
        ("es-AR", "Subió un 3,5 % hoy.", "Subió un tres coma cinco por ciento hoy."),
    ],
)
def test_normalize_takes_the_languages_of_the_node(tone, capsys, tag, text, said):
    assert speak(capsys, text, "--normalize", tag)[0] == 0
    assert tone.asked[0][0] == said


def test_wording_and_glossary(tone, tmp_path, capsys):
    (tmp_path / "names.json").write_text('{"say": {"es": {"Acme": "Akme"}}}')
    text = "¡Atención! Acme y Blue Origin ganan un 2 %."
    options = ("--normalize", "es", "--glossary", "names.json")
    assert speak(capsys, text, *options, "--wording", "u5, U7")[0] == 0
    carried = " ".join(asked[0] for asked in tone.asked)
    assert "Akme" in carried
    assert "la firma Blue Origin" in carried
    assert not carried.startswith("¡Atención!")
    tone.asked.clear()
    assert speak(capsys, text, *options)[0] == 0
    assert tone.asked[0][0].startswith("¡Atención!")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--wording", "U5"), "--wording goes with --normalize"),
        (("--glossary", "x.json"), "--glossary goes with --normalize"),
        (("--normalize", "--wording", "U9"), "'U9' is no rule that can be asked for"),
        (("--normalize", "--glossary", "gone.json"), "glossary gone.json cannot be read"),
    ],
)
def test_wording_and_glossary_that_cannot_be(tone, tmp_path, capsys, options, says):
    code, _, err = speak(capsys, "One two three.", *options)
    assert code != 0
    assert says in err
    assert not (tmp_path / "s.wav").exists()


def test_show_changes_shows_all(tone, capsys):
    text = " ".join(f"It rose {i}.5 % now." for i in range(2, 42))
    _, out, _ = speak(capsys, text, "--normalize", "en", "--show-changes")
    assert out.count("U1 percent:") == 40
    assert "more" not in out


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("Good evening, José.\r\n\r\nMañana llueve.".encode(), ["Good evening, José.", "Mañana llueve."]),
        ("Good evening, José.".encode("utf-8-sig"), ["Good evening, José."]),
        ("Good evening, José.".encode("utf-16"), ["Good evening, José."]),
        ("Good evening, José.".encode("cp1252"), ["Good evening, José."]),
    ],
)
def test_a_script_from_a_file_or_standard_input(tone, tmp_path, capsys, monkeypatch, data, said):
    (tmp_path / "script.txt").write_bytes(data)
    for name in ("script.txt", "-"):
        tone.asked.clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(["speak", "--voice", "tone", "--tags", "--text-file", name, "--out", "s.wav"])
        out = capsys.readouterr().out
        assert code == 0
        assert [a[0] for a in tone.asked] == said
        assert ("read as Windows-1252" in out) == (data == "Good evening, José.".encode("cp1252"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "is empty"),
        (b"\xef\xbb\xbf \r\n", "is empty"),
        (b"Good\x00 evening", "character 4 is U+0000"),
        (b"\xffGood \x81 evening", "is no text in UTF-8 (invalid start byte at byte 0)"),
        (b"\xef\xbb\xbfGood \xff evening", "is no text in UTF-8"),
    ],
)
def test_a_script_that_is_none_is_refused(tone, tmp_path, capsys, data, says):
    if data is not None:
        (tmp_path / "script.txt").write_bytes(data)
    code = main(["speak", "--voice", "tone", "--text-file", "script.txt", "--out", "s.wav"])
    assert code == 2
    assert says in capsys.readouterr().err
    assert not tone.asked


@pytest.mark.parametrize("options", [(), ("--normalize",), ("--tags",), ("--master",)])
def test_nothing_to_say_is_an_error_and_no_file(tone, tmp_path, capsys, options):  # row 39
    code, _, err = speak(capsys, "😀", *options)
    assert code == 2
    assert "there is nothing to say in '😀'" in err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_script(tone, tmp_path, capsys):
    assert main(["speak", "--voice", "tone", "--text-file", str(tmp_path), "--out", "s.wav"]) == 2
    assert "cannot be read (Is a directory)" in capsys.readouterr().err


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
        (("--normalize", "fr"), "'fr' has no text rules"),
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


def test_the_words_without_a_voice(tone, tmp_path, capsys):
    script = "It rose 42.5 % now.\n\nNext line."
    assert main(["speak", "--normalize", "en", "--text", script, "--text-out", "new/said.txt"]) == 0
    words = "It rose forty-two point five percent now.\n\nNext line.\n"
    assert (tmp_path / "new" / "said.txt").read_text(encoding="utf-8") == words
    assert not tone.asked
    capsys.readouterr()
    assert main(["speak", "--normalize", "--text", script, "--text-out", "-"]) == 0
    out, err = capsys.readouterr()
    assert out == words
    assert "language: en" in err


def test_words_and_sound_are_of_one_language(tone, tmp_path, capsys):
    tone.language = "es"
    assert speak(capsys, "3,5 5 7.", "--normalize", "--text-out", "said.txt")[0] == 0
    words = (tmp_path / "said.txt").read_text(encoding="utf-8").split()
    assert words == " ".join(asked[0] for asked in tone.asked).split()


def test_another_rate(tone, capsys):
    assert speak(capsys, "word " * 50, "--rate", "48000")[0] == 0
    info = sf.info("s.wav")
    assert (info.samplerate, info.frames) == (48000, 50 * 160 * 6)


def test_a_sound_is_mastered_too(tone, tmp_path, capsys):
    noise = 0.01 * np.random.default_rng(0).standard_normal((48000, 2))
    sf.write("in.wav", noise, 16000)
    assert main(["speak", "--audio", "in.wav", "--master", "-23", "--out", "out.wav", "--json"]) == 0
    assert "-23.0 LUFS" in json.loads(capsys.readouterr().out)["after mastering"]
    info = sf.info("out.wav")
    assert (info.samplerate, info.frames, info.channels) == (16000, 48000, 2)
    assert not tone.asked


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--audio", "in.wav", "--out", "o.wav"), "--audio goes with --master or --rate"),
        (("--audio", "in.wav", "--out", "o.wav", "--rate", "8000", "--tags"), "--tags is for a text"),
        (("--audio", "in.wav", "--text-out", "o.txt", "--rate", "8000"), "--text-out goes with a text"),
        (("--text", "a", "--text-out", "o.txt"), "--text-out goes with a text and --normalize"),
        (("--text", "a", "--out", "o.wav", "--rate", "800"), "--rate 800 is outside 8000..192000 Hz"),
        (("--text", "a", "--out", "o.wav", "--dialogue", "A=tone;B=tone"), "goes a comma, not ';'"),
    ],
)
def test_what_does_not_go_together(tone, tmp_path, capsys, arguments, says):
    sf.write("in.wav", np.zeros(800), 8000)
    assert main(["speak", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("o.*"))


def test_standard_input_that_is_closed(tone, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert main(["speak", "--text-file", "-", "--out", "s.wav"]) == 2
    assert "standard input cannot be read" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_before_the_work(tone, tmp_path, capsys):
    (tmp_path / "a.wav").write_bytes(b"old")
    assert main(["speak", "--voice", "tone", "--text", "one two", "--out", "a.wav/b.wav"]) == 2
    assert "'a.wav/b.wav' cannot be written" in capsys.readouterr().err
    assert not tone.asked
    assert (tmp_path / "a.wav").read_bytes() == b"old"


def test_a_disk_that_fills_leaves_the_old_file(tone, tmp_path, capsys, monkeypatch):
    def full(*args):
        raise sf.LibsndfileError(2)

    (tmp_path / "s.wav").write_bytes(b"old")
    monkeypatch.setattr(sf, "write", full)
    code, _, err = speak(capsys, "one two three")
    assert code == 2
    assert "'s.wav' could not be written whole" in err
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("s.wav", b"old")]
