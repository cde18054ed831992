"""Telling the people of a clip apart by place, motion and looks."""

import faces as pictures
import numpy as np

from talkinghead.nodes.core import face_views as views
from talkinghead.nodes.core.face_people import Crowd
from talkinghead.nodes.core.faces import Face

_TINTS = (None, (0.6, 0.8, 1.0))


def moment(index, *places):
    """Return a frame with a person at each place, all but the first in another light, and their faces."""
    canvas, faces = pictures.gray(640, 360), []
    for at, place in enumerate(places):
        if place is not None:
            box = pictures.paste(canvas, place, 60, _TINTS[min(at, 1)])
            faces.append(Face(box, 0.9, np.zeros((68, 2), np.float32)))
    return views.make_view(index, canvas, 0), faces


def test_two_people_keep_their_faces_when_the_order_changes():
    view, faces = moment(0, (200, 120), (440, 240))
    crowd = Crowd(view, faces, faces[0])
    assert not crowd.is_alone
    for i in range(1, 13):
        view, faces = moment(i, (200 + 20 * i, 120 + 10 * i), (440 - 20 * i, 240 - 10 * i))
        if 5 <= i <= 8:  # the second, drawn last, covers the first
            assert crowd.take(view, faces[1:]) is None
        else:
            assert crowd.take(view, faces[::-1]) is faces[0]


def test_the_only_face_may_move_but_not_jump_or_become_somebody_else():
    view, faces = moment(0, (200, 180))
    crowd = Crowd(view, faces, faces[0])
    view, faces = moment(1, (215, 180))
    assert crowd.take(view, faces) is faces[0]
    assert crowd.is_alone
    view, faces = moment(2, (450, 180))
    assert crowd.take(view, faces) is None
    assert crowd.looks_right(view, faces[0].box)
    crowd.replace(view, faces[0])
    view, faces = moment(3, (455, 180))
    assert crowd.take(view, faces) is faces[0]
    inverted = views.make_view(4, 255 - view.proxy, 0)
    assert crowd.take(inverted, faces) is None
    assert not crowd.looks_right(inverted, faces[0].box)


def test_somebody_near_counts_unless_he_sits_still():
    view, faces = moment(0, (200, 180), (320, 180))
    crowd = Crowd(view, faces, faces[0])
    assert crowd.anybody_near(view, faces, faces[0].box)
    crowd.take(*moment(4, (200, 180), (320, 180)))
    view, faces = moment(8, (200, 180), (320, 180))
    assert not crowd.anybody_near(view, faces, faces[0].box)
    view, faces = moment(8, (200, 180), (280, 180))
    assert crowd.anybody_near(view, faces, faces[0].box)
    far = moment(0, (100, 180), (500, 180))
    assert not Crowd(*far, far[1][0]).anybody_near(*far, far[1][0].box)


def test_many_people_are_no_trouble():
    view, faces = moment(0, (320, 180))
    crowd = Crowd(view, faces, faces[0])
    for i in range(1, 30):
        extra = Face((20.0 * i, 5.0, 20.0 * i + 15, 20.0), 0.9, np.zeros((68, 2), np.float32))
        assert crowd.take(view, [extra, *faces]) is faces[0]
