"""Emotions as text: names, mixes, and a course over time."""

from __future__ import annotations

import pytest
import torch

from talkinghead.nodes.ditto.condition import Condition, FaceShape, mixed_emotion
from talkinghead.nodes.ditto.emotion import emotion_weights


def test_names_and_mixes():
    assert torch.equal(emotion_weights("neutral"), mixed_emotion({"neutral": 1.0}))
    assert torch.equal(
        emotion_weights(" Happy 0.7,surprise 0.3 "), mixed_emotion({"happy": 0.7, "surprise": 0.3})
    )
    assert torch.allclose(emotion_weights("sad 2, fear 6"), mixed_emotion({"sad": 0.25, "fear": 0.75}))
    assert emotion_weights("happy, sad").argsort(descending=True)[0, :2].sort().values.tolist() == [3, 5]


def test_a_course_over_time():
    rows = emotion_weights("0.4 s neutral; 1.2 s happy")
    neutral, happy = (mixed_emotion({name: 1.0})[0] for name in ("neutral", "happy"))
    assert rows.shape == (31, 8)
    assert torch.allclose(rows[:11], neutral.expand(11, 8), atol=1e-6)
    assert torch.allclose(rows[20], (neutral + happy) / 2, atol=1e-6)
    assert torch.allclose(rows[30], happy, atol=1e-6)
    assert rows.dtype == torch.float32
    assert torch.allclose(rows.sum(1), torch.ones(31), atol=1e-5)


def test_the_last_stays():
    face = FaceShape(torch.ones(1, 2), torch.ones(1, 6), torch.ones(6))
    rows = emotion_weights("0 s neutral; 0.2 s happy")
    held = Condition(face, rows, hold_emotion=True).rows(torch.zeros(20, 3), 0)[:, 3:11]
    assert torch.equal(held[5:], rows[5].expand(15, 8))
    anew = Condition(face, rows).rows(torch.zeros(20, 3), 0)[:, 3:11]
    assert torch.equal(anew[6:12], rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("glad", "'glad' is not one of angry, disgust"),
        ("happy 0.5, happy 0.5", "each once"),
        ("happy -1", "is not one of"),
        ("happy 0", "above 0 to one"),
        ("0 s happy; sad", "'sad' does not begin with a time"),
        ("2 s happy; 1 s sad", "times must grow"),
        ("0 s happy; 4000 s sad", "within 3600 s"),
        ("0 s happy; 1e9 s sad", "does not begin with a time"),
    ],
)
def test_what_is_none(text, said):
    with pytest.raises(ValueError, match=said):
        emotion_weights(text)
