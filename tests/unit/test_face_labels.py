"""Labels from the face mesh, on a mesh whose polygons are known rectangles and on the presenter's."""

import faces as pictures
import numpy as np
import pytest

from talkinghead.nodes.core import mesh_points as points
from talkinghead.nodes.core.blend import crop_geometry
from talkinghead.nodes.musetalk.boxes import face_box
from talkinghead.nodes.musetalk.masks import mode_mask
from talkinghead.nodes.musetalk.mesh_labels import mesh_labels

CROP = crop_geometry((1000, 2000, 1256, 2256))  # a square of 384 pixels at 936, 1936
LEFT, TOP = CROP[:2]


def around(indices, x1, y1, x2, y2, mesh):
    """Lay the points of a closed polygon along a rectangle, from the middle of its upper edge."""
    share = np.arange(len(indices)) / len(indices) * 4
    corners = np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2], [x1, y1]], float)
    mesh[indices] = [corners[int(s)] + (s - int(s)) * (corners[int(s) + 1] - corners[int(s)]) for s in share]


def lip(indices, x1, y1, x2, y2, mesh):
    """A lip of 22 points: eleven along its outer edge from left to right, eleven back."""
    x = np.linspace(x1, x2, 11)
    mesh[indices[:11]] = np.stack([x, np.full(11, y1)], 1)
    mesh[indices[11:]] = np.stack([x[::-1], np.full(11, y2)], 1)


@pytest.fixture
def drawn():
    """Rectangles in the square's own pixels (0..384)."""
    mesh = np.zeros((468, 2))
    around(points.FACE_OVAL, 60, 30, 324, 354, mesh)
    around(points.NOSE, 171, 99, 213, 201, mesh)
    around(points.LEFT_EYE, 99, 90, 150, 111, mesh)
    around(points.RIGHT_EYE, 234, 90, 285, 111, mesh)
    lip(points.LOWER_LIP, 120, 288, 264, 267, mesh)
    lip(points.UPPER_LIP, 120, 231, 264, 249, mesh)
    return mesh + (LEFT, TOP)


def at(labels, x, y):
    return int(labels[int(y * 512 / 384), int(x * 512 / 384)])


def test_every_class_lies_where_its_polygon_does(drawn):
    labels = mesh_labels(drawn, CROP)
    assert labels.shape == (512, 512)
    assert labels.dtype == np.uint8
    expected = {
        (10, 10): 0, (372, 372): 0, (192, 60): 1, (90, 300): 1, (192, 150): 10, (125, 100): 4,
        (260, 100): 5, (192, 240): 12, (192, 258): 11, (192, 278): 13, (192, 320): 1,
    }  # fmt: skip
    assert {place: at(labels, *place) for place in expected} == expected


def test_areas_are_exact_to_their_edges(drawn):
    labels = mesh_labels(drawn, CROP)
    face = labels > 0
    rows, columns = np.flatnonzero(face.any(1)), np.flatnonzero(face.any(0))
    for value, truth in zip(
        (columns[0], columns[-1] + 1, rows[0], rows[-1] + 1), (60, 324, 30, 354), strict=True
    ):
        assert abs(value - truth * 512 / 384) <= 1.5


def test_the_square_may_leave_the_frame_and_the_mesh_the_square(drawn):
    shift = np.array([-LEFT - 200, -TOP - 10])
    crop = tuple(np.add(CROP[:4], np.tile(shift, 2))) + CROP[4:]
    assert np.array_equal(mesh_labels(drawn + shift, crop), mesh_labels(drawn, CROP))
    gone = mesh_labels(drawn + 5000, CROP)
    assert not gone.any()
    huge = mesh_labels((drawn - (LEFT, TOP)) * 1e6 + (LEFT - 1e8, TOP - 1e8), CROP)
    assert huge.shape == (512, 512)


def test_closed_and_crossed_lips_leave_no_hole(drawn):
    mesh = drawn.copy()
    lip(points.UPPER_LIP, 120, 231, 264, 262, mesh)  # lower edge below the lower lip's upper one
    lip(points.LOWER_LIP, 120, 288, 264, 255, mesh)
    mesh[points.UPPER_LIP] += (LEFT, TOP)
    mesh[points.LOWER_LIP] += (LEFT, TOP)
    labels = mesh_labels(mesh, CROP)
    column = labels[int(235 * 4 / 3) : int(284 * 4 / 3), 256]
    assert set(column.tolist()) <= {11, 12, 13}


def test_modes_take_them(drawn):
    labels = mesh_labels(drawn, CROP)
    raw, jaw = mode_mask(labels, "raw"), mode_mask(labels, "jaw")
    for mask in (raw, jaw):
        assert at(mask, 192, 240) == at(mask, 192, 258) == at(mask, 192, 278) == 255
        assert at(mask, 192, 150) == 0  # no nose
        assert at(mask, 10, 10) == 0
    assert at(jaw, 192, 356) == 255  # grown below the chin
    assert at(raw, 192, 356) == 0


def test_the_presenters_lips_are_lips():
    (face,) = pictures.light_detector().detect(pictures.presenter())
    crop = crop_geometry(face_box(face.points, (0, 0, 1, 1)).box)
    labels = mesh_labels(face.mesh, crop)
    scale = 512 / (crop[2] - crop[0])
    where = lambda x, y: int(labels[int((y - crop[1]) * scale), int((x - crop[0]) * scale)])  # noqa: E731
    assert where(256, 325) == 13  # positions read off the drawing
    assert where(256, 280) == 10
    assert where(200, 300) == 1
    assert where(100, 200) == 0


def test_what_is_no_mesh_and_no_square(drawn):
    for mesh in (drawn[:467], drawn[:, :1], np.where(drawn > 0, np.nan, drawn)):
        with pytest.raises(ValueError, match=r"must be finite \(468, 2\)"):
            mesh_labels(mesh, CROP)
    with pytest.raises(ValueError, match="is empty"):
        mesh_labels(drawn, (10, 10, 10, 50, 0, 0, 0, 0))
