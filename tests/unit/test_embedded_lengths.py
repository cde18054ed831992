"""Exact lengths with the embedded engine, through the command line: three cells of the writer's table."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import soundfile

from talkinghead import cli
from talkinghead.nodes.core.metrics import av_difference

AAC_PRIMING_S = Fraction(1024, 16000)


@pytest.mark.parametrize(("seconds", "fps"), [("0.05", "60"), ("0.3", "30000/1001"), ("13.94", "25")])
def test_picture_and_sound_end_together(tmp_path, capsys, seconds, fps):
    n = int(Fraction(seconds) * 16000)
    swell = 0.3 * np.sin(np.arange(n) / 9) * np.sin(np.arange(n) / 1500)
    soundfile.write(tmp_path / "tone.wav", swell.astype(np.float32), 16000)
    args = ("--avatar", "demo", "--models", tmp_path / "m", "--fps", fps, "--size", "128x128", "--json")
    code = cli.main(
        ["render", "--audio", str(tmp_path / "tone.wav"), "--out", str(tmp_path / "v.mp4"), *map(str, args)]
    )
    assert code == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["frames"] == math.ceil(Fraction(seconds) * Fraction(fps))
    lengths = av_difference(tmp_path / "v.mp4")
    assert lengths.n_frames == facts["frames"]
    assert abs(lengths.video - lengths.audio) <= 1 / Fraction(fps) + AAC_PRIMING_S
