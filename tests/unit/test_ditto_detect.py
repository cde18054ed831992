"""Ditto's detectors and landmarks around their networks, beyond the goldens: empty, misshapen and unusual input.

The networks here are functions that answer what a test wants.
"""

import numpy as np
import pytest

from talkinghead.nodes.ditto import detect, eyes, landmarks, mesh478


def outputs(*candidates):
    """The detector's nine outputs with (stride, row, score, l t r b in strides) in them."""
    shapes = detect.output_shapes()
    scores, boxes, points = ([np.zeros(s, np.float32) for s in shapes[kind]] for kind in shapes)
    for stride, row, score, reach in candidates:
        at = detect.STRIDES.index(stride)
        scores[at][row, 0], boxes[at][row] = score, reach
    return [*scores, *boxes, *points]


def test_the_picture_lies_in_the_corner_blue_first():
    picture = np.zeros((100, 400, 3), np.uint8)
    picture[...] = (255, 127, 0)
    values, scale = detect.detector_input(picture)
    assert scale == 1.28
    assert values.shape == (1, 3, 512, 512)
    assert values[0, :, 0, 0].tolist() == [-127.5 / 128, -0.5 / 128, 127.5 / 128]
    assert (values[0, :, 128:] == -127.5 / 128).all()
    assert (values[0, 2, :128] == 127.5 / 128).all()


@pytest.mark.parametrize("size", [(1, 2000), (2000, 1), (1, 1)])
def test_pictures_thinner_than_a_pixel_of_the_input(size):
    values, scale = detect.detector_input(np.zeros((*size, 3), np.uint8))
    assert values.shape == (1, 3, 512, 512)
    assert scale > 0


def test_both_anchors_of_a_cell_have_its_place():
    found = []
    for row in (2 * (3 * 32 + 5), 2 * (3 * 32 + 5) + 1):
        rows, points = detect.decode(outputs((16, row, 0.9, (1, 2, 3, 4))))
        found.append(rows[0].tolist())
        assert (points[0] == (80, 48)).all()
    assert found[0] == found[1] == pytest.approx([64, 16, 128, 112, 0.9])


def test_no_candidate_and_a_batch_axis():
    rows, points = detect.decode([value[None] for value in outputs()])
    assert rows.shape == (0, 5)
    assert points.shape == (0, 5, 2)
    assert detect.suppress(rows) == []


@pytest.mark.parametrize("wrong", [lambda o: o[:8], lambda o: [o[0][:-1], *o[1:]], lambda o: o[3:] + o[:3]])
def test_outputs_of_another_network(wrong):
    with pytest.raises(ValueError, match=r"the face detector gave .*expected \[\(8192, 1\).*another network"):
        detect.decode(wrong(outputs()))


def test_suppression_counts_a_pixel_more():
    """Areas 10 x 10 and 10 x 10 of whole pixels share 4 x 10 of 160: 0.25; 5 x 10 of 150: 1 / 3; 6 x 10: 3 / 7."""
    box = np.array([0, 0, 9, 9, 0.9])
    for shift, is_one in ((6, False), (5, False), (4, True)):
        rows = np.stack([box, box + [shift, 0, shift, 0, -0.1]])
        assert detect.suppress(rows) == ([0] if is_one else [0, 1])


def test_a_face_is_back_in_the_pictures_pixels():
    picture = np.zeros((1024, 256, 3), np.uint8)
    rows, points = detect.find_faces(picture, lambda _: outputs((32, 2 * 17, 0.7, (0.5, 0.5, 0.5, 0.5))))
    assert rows[0, :4].tolist() == [2 * 16, 2 * 16, 2 * 48, 2 * 48]
    assert (points[0] == 64).all()


def test_the_square_of_106_points():
    matrix = landmarks.matrix_106((10, 20, 50, 100))
    corners = np.array([[10, 20, 1], [50, 100, 1]]) @ matrix.T
    assert corners.tolist() == [[64, 32], [128, 160]]
    points = landmarks.points_106(np.zeros((1, 212), np.float32), matrix)
    assert points.shape == (106, 2)
    assert np.allclose(points, (30, 60))
    with pytest.raises(ValueError, match="a face box of 0x0 pixels"):
        landmarks.matrix_106((5, 5, 5, 5))
    for wrong in (np.zeros((1, 211)), np.zeros((1, 100))):
        with pytest.raises(ValueError, match=r"106-point network gave \(1, \d+\)"):
            landmarks.points_106(wrong, matrix)


def test_landmarks_see_what_was_cut():
    """The network's input is the picture there, in its order of channels; its points come back to it."""
    picture = np.zeros((300, 300, 3), np.uint8)
    picture[100:200, 100:200] = (200, 100, 50)
    seen = []

    def middle(values):
        seen.append(values)
        return np.full((1, 406), 0.5, np.float32)

    around = np.concatenate([np.full((100, 2), 120.0), np.full((103, 2), 180.0)]).astype(np.float32)
    around[48], around[66] = (150, 170), (150, 170)
    around[[0, 6, 12, 18]], around[[24, 30, 36, 42]] = (130, 130), (170, 130)
    found = landmarks.find_203(picture, around, middle)
    assert np.allclose(found, found[0])
    assert np.abs(found[0] - 150).max() < 15
    assert np.allclose(seen[0][0, :, 112, 112], np.array([200, 100, 50]) / 255)
    with pytest.raises(ValueError, match="203-point network"):
        landmarks.find_203(picture, around, lambda _: np.zeros((1, 404)))
    seen.clear()
    landmarks.find_106(picture, (100, 100, 200, 200), lambda v: seen.append(v) or np.zeros((1, 212)))
    assert seen[0][0, :, 96, 96].tolist() == [50, 100, 200]


def blaze(row, score, size, right=(16.0, 0.0)):
    """The box network's outputs with one face at the middle of an anchor."""
    regressors = np.zeros((1, 896, 16), np.float32)
    regressors[0, row, 2:4], regressors[0, row, 6:8] = size, right
    scores = np.full((1, 896, 1), -100, np.float32)
    scores[0, row] = score
    return regressors, scores


def test_the_mesh_in_a_picture_that_is_no_square():
    """Every axis has its own scale, where upstream takes the other's."""
    picture, seen = np.zeros((100, 400, 3), np.uint8), []
    picture[40:60, 100:300] = 255
    answer = np.tile(np.array([128, 128, 64], np.float32), 478)
    found = mesh478.find_mesh(
        picture,
        lambda values: blaze(2 * (8 * 16 + 8), 3.0, (32.0, 64.0)),
        lambda values: seen.append(values) or answer,
    )
    # The anchor's middle is 8.5 / 16 of both sides; the box is 100 wide and 50 high, so the square 150.
    assert found.shape == (478, 3)
    assert np.allclose(found, (8.5 / 16, 8.5 / 16, 64 / 256 * 150 / 400), atol=1e-6)
    assert seen[0].shape == (1, 256, 256, 3)
    assert seen[0].max() == 1


def test_a_picture_without_a_face_has_no_mesh():
    picture = np.zeros((64, 64, 3), np.uint8)
    for score in (-3.0, float("nan")):
        assert mesh478.find_mesh(picture, lambda _, s=score: blaze(5, s, (20, 20)), pytest.fail) is None
    assert mesh478.find_mesh(picture, lambda _: blaze(5, 2.0, (0, 0)), pytest.fail) is None
    with pytest.raises(ValueError, match=r"gave \(1, 896, 4\)"):
        mesh478.blaze_faces(np.zeros((1, 896, 4)), np.zeros((1, 896, 1)))
    with pytest.raises(ValueError, match="expected 1434 numbers"):
        mesh478.mesh_points(np.zeros((1, 1404)), mesh478.Roi((0, 0), 1, 0))


def test_a_turned_square_and_back():
    roi = mesh478.mesh_roi(np.array([10, 10, 30, 50]), np.array([20, 20]), np.array([20, 40]))
    assert (roi.centre, roi.side, roi.angle) == ((20, 30), 60, pytest.approx(np.pi / 2))
    raw = np.full((478, 3), 128.0)
    raw[0] = 256, 128, 0
    points = mesh478.mesh_points(raw, roi)
    assert np.allclose(points[:2], [[20, 60, 0], [20, 30, 30]], atol=1e-4)


def test_eyes():
    points = np.zeros((478, 3), np.float32)
    points[33], points[133] = (0, 0, 0), (4, 0, 0)
    points[263], points[362] = (14, 0, 0), (10, 0, 0)
    points[[145, 144, 153], 1] = 1
    points[[374, 373, 380], 1] = 0.25
    points[468], points[473] = (2, 0, 0), (12, 1, 0)
    assert eyes.eye_open(points) == pytest.approx([3 / 4, 3 / 16])
    assert eyes.eye_open(points[:468, :2]) == pytest.approx([3 / 4, 3 / 16])
    assert eyes.eye_open(points * 7) == pytest.approx([3 / 4, 3 / 16])
    ball = eyes.eye_ball(points)
    assert ball == pytest.approx(
        [0, -1, 0, 1, 0, 0]
    )  # the left iris in the middle, the right one a pixel down
    assert ball.dtype == np.float32
    assert not eyes.NO_EYE_BALL.any()
