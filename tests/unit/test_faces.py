"""Which of several faces is meant."""

import numpy as np
import pytest

from talkinghead.nodes.core.faces import LARGEST, Face, FaceChoice, choose_face, left_to_right, parse_choice


def face(x1, y1, x2, y2, score=0.9):
    return Face((x1, y1, x2, y2), score, np.zeros((68, 2), np.float32))


LEFT, MIDDLE, RIGHT = face(10, 40, 50, 80), face(90, 10, 190, 110), face(220, 50, 260, 90)
CROWD = [RIGHT, LEFT, MIDDLE]


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("largest", LARGEST),
        (" Auto ", LARGEST),
        ("", LARGEST),
        ("0", FaceChoice("index", index=0)),
        ("12", FaceChoice("index", index=12)),
        ("320,240", FaceChoice("nearest", point=(320.0, 240.0))),
        ("320.5 x 240", FaceChoice("nearest", point=(320.5, 240.0))),
        ("-4, 7", FaceChoice("nearest", point=(-4.0, 7.0))),
    ],
)
def test_choice_is_read(text, choice):
    assert parse_choice(text) == choice


@pytest.mark.parametrize("text", ["left", "-1", "1.5", "1,2,3", "100", "nan,1", "1,"])
def test_choice_that_is_none(text):
    with pytest.raises(ValueError, match=r"largest, a number from the left .* or a point x,y"):
        parse_choice(text)


def test_largest_index_and_nearest():
    assert choose_face(CROWD, LARGEST) is MIDDLE
    assert [choose_face(CROWD, FaceChoice("index", index=i)) for i in range(3)] == [LEFT, MIDDLE, RIGHT]
    assert choose_face(CROWD, FaceChoice("nearest", point=(215, 0))) is RIGHT
    assert choose_face(CROWD, FaceChoice("nearest", point=(-99, 500))) is LEFT


def test_order_is_left_to_right_whatever_the_detector_gives():
    for shift in range(3):
        assert left_to_right(CROWD[shift:] + CROWD[:shift]) == [LEFT, MIDDLE, RIGHT]
    above, below = face(0, 0, 10, 10), face(0, 50, 10, 60)
    assert left_to_right([below, above]) == [above, below]


def test_index_that_is_not_there_says_how_many_faces_there_are():
    with pytest.raises(
        ValueError, match=r"face 1 was asked for and 1 face was found; from the left they are 0\.\.0"
    ):
        choose_face([LEFT], FaceChoice("index", index=1))
    with pytest.raises(ValueError, match=r"face 3 was asked for and 3 faces were found.* 0\.\.2"):
        choose_face(CROWD, FaceChoice("index", index=3))


def test_no_face_and_unknown_kind():
    with pytest.raises(ValueError, match="no face was found"):
        choose_face([], LARGEST)
    with pytest.raises(ValueError, match="'smallest' is unknown"):
        choose_face(CROWD, FaceChoice("smallest"))


def test_face_measures():
    assert MIDDLE.centre == (140, 60)
    assert MIDDLE.area == 100 * 100
    assert face(10, 10, 5, 20).area == 0
