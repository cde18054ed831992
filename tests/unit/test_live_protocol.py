"""The wire format of live sessions: what is taken, what is refused and with which words."""

import json
from fractions import Fraction

import numpy as np
import pytest

from talkinghead.nodes.core import live_protocol as wire
from talkinghead.nodes.core.live_protocol import PcmReader, ProtocolError, StartRequest, parse_start


def start(**fields):
    base = {"type": "start", "version": 1, "avatar": "demo", "sample_rate": 16000}
    return json.dumps({k: v for k, v in {**base, **fields}.items() if v is not ...})


def test_the_least_a_client_must_say_and_what_it_then_gets():
    assert parse_start(start()) == StartRequest(
        "demo", 16000, "", "", Fraction(25), 1, "s16", "mp4", "balanced"
    )


def test_everything_can_be_said():
    asked = parse_start(
        start(
            checkpoint="musetalk-1.5",
            precision="fp16",
            fps="29.97",
            channels=2,
            sample_format="f32",
            output="h264",
            quality="draft",
            sample_rate=48000,
            cadence="2",
            rest=True,
        )
    )
    assert asked.fps == Fraction(30000, 1001)
    assert asked.bytes_per_sample == 8
    assert (asked.checkpoint, asked.precision, asked.output, asked.quality) == (
        "musetalk-1.5",
        "fp16",
        "h264",
        "draft",
    )
    assert (asked.cadence, asked.rest) == ("2", True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"type": "end"}, 'is of type "start", not "end"'),
        ({"type": 3}, 'with a "type"'),
        ({"version": 2}, "version 2 is not spoken here; this server speaks 1"),
        ({"version": ...}, "version null"),
        ({"version": True}, "version true"),
        ({"avatar": ...}, "lacks 'avatar'"),
        ({"sample_rate": ...}, "lacks 'sample_rate'"),
        ({"avatar": ""}, 'avatar "" is not a name'),
        ({"avatar": 7}, "avatar 7 is not a name"),
        ({"avatar": "../../etc"}, "without slashes"),
        ({"avatar": "a\\b"}, "without slashes"),
        ({"avatar": "a\x00b"}, "is not a name"),
        ({"avatar": "x" * 101}, "1 to 100 characters"),
        ({"avatar": ["demo"]}, "is not a name"),
        ({"checkpoint": "a/b"}, 'checkpoint "a/b" is not a name'),
        ({"sample_rate": 16001}, "sample_rate 16001 is not possible; use one of 8000, 11025"),
        ({"sample_rate": "16000"}, "sample_rate"),
        ({"sample_rate": 16000.0}, "sample_rate"),
        ({"channels": 0}, "channels 0 is not possible; use one of 1, 2"),
        ({"channels": 6}, "channels 6"),
        ({"channels": True}, "channels true"),
        ({"sample_format": "s24"}, 'sample_format "s24" is not possible; use one of s16, f32'),
        ({"output": "webm"}, "use one of mp4, h264"),
        ({"quality": "high"}, "use one of draft, balanced"),
        ({"cadence": 2}, "cadence 2 is not possible; use one of dense, 2, 3, adaptive"),
        ({"cadence": "4"}, 'cadence "4" is not possible'),
        ({"rest": 1}, "rest 1 is not possible; use true or false"),
        ({"rest": None}, "rest null is not possible"),
        ({"fps": 9}, "fps 9 is outside 10..60"),
        ({"fps": 61}, "fps 61 is outside 10..60"),
        ({"fps": "fast"}, "fps 'fast' is not a rate"),
        ({"fps": None}, "fps null is not a rate"),
        ({"fps": [25]}, "is not a rate"),
        ({"fps": 1e300}, "not a rate"),
        ({"colour": "red"}, 'start has no field "colour"'),
        ({"avatar": "demo", "note": "x" * 9000}, "longer than 8192"),
    ],
)
def test_what_is_wrong_is_named(fields, says):
    with pytest.raises(ProtocolError) as e:
        parse_start(start(**fields))
    assert says in str(e.value)
    assert len(str(e.value)) < 400


@pytest.mark.parametrize("text", ["", "[1]", "null", "{", "3", '"start"', '{"type": null}', "[" * 5000])
def test_what_is_no_message_is_refused(text):
    with pytest.raises(ProtocolError):
        wire.parse_message(text)


def test_what_may_follow():
    assert wire.parse_control('{"type": "end"}') == "end"
    assert wire.parse_control('{"type": "cancel"}') == "cancel"
    with pytest.raises(ProtocolError, match="text is not available"):
        wire.parse_control('{"type": "text", "text": "hello"}')
    with pytest.raises(ProtocolError, match='type "start" is unknown here'):
        wire.parse_control(start())


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("sample_format", ["s16", "f32"])
@pytest.mark.parametrize("step", [1, 3, 7, 64, 10_000])
def test_samples_survive_any_cut(channels, sample_format, step):
    rng = np.random.default_rng(5)
    sound = rng.uniform(-1, 1, (channels, 301)).astype(np.float32)
    if sample_format == "s16":
        sound = np.round(sound * 32767).astype(np.int16)
    data = np.ascontiguousarray(sound.T).tobytes()
    reader = PcmReader(StartRequest("demo", 16000, channels=channels, sample_format=sample_format))
    parts = [reader.read(data[i : i + step]) for i in range(0, len(data), step)]
    assert all(p.dtype == np.float32 and p.shape[0] == channels for p in parts)
    expected = sound.astype(np.float32) / (32768 if sample_format == "s16" else 1)
    assert np.array_equal(np.concatenate(parts, axis=1), expected)
    assert reader.n_samples == 301
    assert reader.notes() == []


def test_an_unfinished_sample_is_told():
    reader = PcmReader(StartRequest("demo", 16000, channels=2))
    assert reader.read(b"\x00" * 7).shape == (2, 1)
    assert reader.notes() == ["the sound ended 3 of 4 bytes into a sample; they were dropped"]


def test_what_is_no_sound_is_repaired_and_told():
    reader = PcmReader(StartRequest("demo", 16000, sample_format="f32"))
    got = reader.read(np.array([0.5, np.nan, np.inf, -3, 1, -1], "<f4").tobytes())
    assert got.tolist() == [[0.5, 0, 0, -1, 1, -1]]
    assert (reader.bad, reader.hot) == (2, 1)
    assert len(reader.notes()) == 2


def test_no_samples_is_no_fault():
    assert PcmReader(StartRequest("demo", 16000, channels=2)).read(b"").shape == (2, 0)


def test_a_message_that_is_too_long_says_the_limit():
    with pytest.raises(ProtocolError, match="1048577 bytes is longer than 1048576"):
        PcmReader(StartRequest("demo", 16000)).read(b"\x00" * (wire.MAX_BINARY + 1))


def test_events_are_json_with_exact_rates():
    assert json.loads(wire.event("ready", fps=Fraction(30000, 1001), frames=3)) == {
        "type": "ready",
        "fps": "30000/1001",
        "frames": 3,
    }


def test_every_cadence_can_be_asked_for():
    from talkinghead.nodes.core.cadence import MODES

    assert wire.CADENCES == MODES


def test_qualities_and_rates_are_ones_the_encoders_know():
    from talkinghead.nodes.core.encoders import QUALITIES
    from talkinghead.nodes.core.video_encode import AAC_RATES

    assert set(wire.QUALITIES) <= set(QUALITIES)
    assert set(wire.SAMPLE_RATES) <= set(AAC_RATES)
