"""--cadence on the command line: what it makes of a render, and what it refuses."""

import json

import cv2
import numpy as np
import pytest
import soundfile

from talkinghead import cli


@pytest.fixture
def render(tmp_path, tiny_model, capsys):
    """Return a function: options -> (exit code, facts or the error) of a render of 0.4 s of tone and 0.4 s of silence."""
    (tmp_path / "face.png").write_bytes(
        cv2.imencode(".png", np.full((96, 128, 3), 90, np.uint8))[1].tobytes()
    )
    t = np.arange(6400) / 16000
    sound = np.concatenate([0.3 * np.sin(900 * t), np.zeros(6400)])
    soundfile.write(tmp_path / "speech.wav", sound, 16000)

    def run(*options):
        base = [
            "render",
            "--avatar",
            tmp_path / "face.png",
            "--box",
            "30,10,90,80",
            "--models",
            tmp_path / "models",
        ]
        files = ["--audio", tmp_path / "speech.wav", "--out", tmp_path / "v.mp4", "--json"]
        code = cli.main([str(a) for a in (*base, *files, *options)])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if code == 0 else captured.err

    return run


def test_without_it_every_frame_is_drawn(render):
    code, facts = render()
    assert code == 0
    assert facts["frames"] == 20
    assert "stride mix" not in facts["report"]


def test_the_report_says_what_was_drawn(render):
    code, facts = render("--cadence", "2")
    assert code == 0
    assert facts["frames"] == 20
    assert facts["report"]["frames at rest"] == 5
    assert facts["report"]["stride mix"].endswith("at rest 25 %")
    assert facts["stride mix"] == facts["report"]["stride mix"]  # shown without --json too
    code, facts = render(
        "--cadence", "adaptive", "--no-rest", "--rms-threshold", "1", "--flux-threshold", "0.5"
    )
    assert code == 0
    assert facts["report"]["key frames"] == "8 of 20"  # 0, 3, ... 18, 19
    assert facts["report"]["frames at rest"] == 0


def test_the_viseme_cache_goes_with_any_cadence_or_none(render):
    code, facts = render("--viseme-cache", "16")
    assert code == 0
    assert " of 20 lookups (" in facts["report"]["viseme cache"]
    assert facts["report"]["frames at rest"] == 0
    code, facts = render("--viseme-cache", "16", "--cadence", "2")
    assert code == 0
    assert facts["report"]["frames at rest"] == 5
    assert " of 15 lookups (" in facts["report"]["viseme cache"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cadence", ""), "cadence '' is unknown; use one of dense, 2, 3, adaptive"),
        (("--cadence", "4"), "cadence '4' is unknown; use one of dense, 2, 3, adaptive"),
        (("--cadence", "2", "--rms-threshold", "-1"), "rms_threshold -1.0 is outside 0..1"),
        (("--viseme-cache", "-1"), "a viseme cache of -1 MB; give 0 (none) to 4096"),
        (("--no-rest",), "go with --cadence"),
        (("--flux-threshold", "0.1"), "go with --cadence"),
    ],
)
def test_what_cannot_be_is_named_before_any_work(render, options, message, tmp_path):
    code, error = render(*options)
    assert code != 0
    assert message in error
    assert not (tmp_path / "models").exists()
