"""Condition rows: frame numbers, emotions and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ditto_motion_parts import SPEECH_WIDTH, speech, tiny_condition

from talkinghead.nodes.ditto.condition import (
    EMOTIONS,
    Condition,
    FaceShape,
    emotion_row,
    emotion_rows,
    mixed_emotion,
)

EMOTION = slice(SPEECH_WIDTH, SPEECH_WIDTH + 8)
EYES = slice(SPEECH_WIDTH + 8, SPEECH_WIDTH + 16)


def test_a_row_depends_on_its_frame_alone():
    condition = tiny_condition(emotion=[[4], [3], [2, 5]])
    rows = condition.rows(speech(40), 0)
    assert torch.equal(torch.cat([condition.rows(speech(40)[i : i + 7], i) for i in range(0, 40, 7)]), rows)
    early = condition.rows(speech(40), -30)
    assert torch.equal(early[30:, SPEECH_WIDTH:], rows[:10, SPEECH_WIDTH:])
    assert (early[:30, SPEECH_WIDTH:] == rows[0, SPEECH_WIDTH:]).all()
    assert condition.rows(speech(0), 3).shape == (0, SPEECH_WIDTH + condition.extra)


def test_eyes_play_forward_and_backward():
    condition = tiny_condition()
    face = condition.face
    eyes = torch.cat([face.eye_open, face.eye_ball], dim=1)
    rows = condition.rows(speech(8), 1)[:, EYES]
    assert torch.equal(rows, eyes[[1, 2, 2, 1, 0, 0, 1, 2]])
    fixed = tiny_condition(fixed_eyes=True).rows(speech(8), 5)[:, EYES]
    assert torch.equal(fixed, eyes[:1].expand(8, -1))


def test_emotions_repeat_from_the_start():
    weights = torch.rand(3, 8)
    rows = tiny_condition(emotion=weights).rows(speech(7), 2)[:, EMOTION]
    assert torch.equal(rows, weights[[2, 0, 1, 2, 0, 1, 2]])
    assert torch.equal(tiny_condition(emotion=weights.double().numpy()).rows(speech(7), 2)[:, EMOTION], rows)


def test_a_label_outweighs_the_rest():
    row = emotion_row([EMOTIONS.index("happy")])
    assert row.sum().item() == pytest.approx(1)
    assert row[3].item() == pytest.approx(np.exp(8) / (np.exp(8) + 7), rel=1e-6)
    both = emotion_row([3, 6])
    assert both[3] == both[6]
    assert both[3] > 1000 * both[0]


def test_mixes_by_name():
    mix = mixed_emotion({"happy": 3, "neutral": 1, "fear": 0})
    assert torch.allclose(mix[0], 0.75 * emotion_row([3]) + 0.25 * emotion_row([4]))
    assert torch.allclose(mixed_emotion({"sad": 0.2}), emotion_rows(5))
    for bad in ({"joy": 1}, {"happy": -1, "sad": 2}, {"happy": 0}, {}, {"happy": float("nan")}):
        with pytest.raises(ValueError, match="give 0 or more to some of angry, disgust"):
            mixed_emotion(bad)


@pytest.mark.parametrize(
    ("emotion", "said"),
    [
        (8, "emotion 8 is not one of 0 angry"),
        (-1, "emotion -1 is not one of"),
        (True, "emotion True is not one of"),
        ((9,), "emotion 9 is not one of"),
        ([1.0], "emotion 1.0 is not one of"),
        ([4, 4], "give one to seven different ones"),
        (list(range(8)), "give one to seven different ones"),
        ([], "give a label 0..7, a list of labels"),
        ([[]], "give one to seven different ones"),
        ("4", "give a label 0..7, a list of labels"),
        (4.0, "give a label 0..7, a list of labels"),
        (np.zeros(8), r"are \(8,\): give finite numbers \(frames, 8\)"),
        (np.full((2, 8), np.nan), r"give finite numbers"),
        (torch.zeros(0, 8), r"one frame or more"),
    ],
)
def test_emotions_that_are_none(emotion, said):
    with pytest.raises(ValueError, match=said):
        emotion_rows(emotion)


def test_faces_in_doubles_become_floats():
    face = FaceShape(np.zeros((1, 2)), np.zeros((1, 6)), np.zeros((1, 21, 3)))
    assert {value.dtype for value in vars(face).values()} == {torch.float32}
    assert Condition(face).rows(torch.zeros(2, 5, dtype=torch.float64), 0).dtype == torch.float32
    assert Condition(face).extra == 79


@pytest.mark.parametrize(
    ("eye_open", "eye_ball"), [((2, 2), (1, 6)), ((1, 3), (1, 6)), ((0, 2), (0, 6)), ((1, 2), (1, 5))]
)
def test_faces_that_do_not_fit(eye_open, eye_ball):
    with pytest.raises(ValueError, match=r"give \(n, 2\) and \(n, 6\), a row for each"):
        FaceShape(torch.zeros(eye_open), torch.zeros(eye_ball), torch.zeros(63))


def test_eyes_can_be_those_of_the_frames_that_are_shown():
    face = FaceShape(torch.arange(8.0).reshape(4, 2), torch.zeros(4, 6), torch.zeros(6))
    asked = []

    def shown(first, count):
        asked.append((first, count))
        return (first + np.arange(count)) * 2 % 4

    rows = Condition(face, eyes_at=shown).rows(torch.zeros(6, 3), -2)
    assert torch.equal(rows[:, 11], torch.tensor([0.0, 0, 0, 4, 0, 4]))
    assert asked == [(0, 4)]
    assert torch.equal(
        Condition(face, eyes_at=shown, fixed_eyes=True).rows(torch.zeros(6, 3), 0)[:, 11], torch.zeros(6)
    )
