"""Registration: the light way on drawn portraits, upstream's way on a double of its networks that sees marked squares."""

from __future__ import annotations

import faces as pictures
import numpy as np
import pytest
from face_scene import Scene, still
from face_stub import MARK, MarkDetector, marked

from talkinghead.nodes.core.face_views import nearest
from talkinghead.nodes.core.faces import LARGEST, FaceChoice
from talkinghead.nodes.ditto.crop import CROP_SIZE, crop_matrices, face_box, move_points
from talkinghead.nodes.ditto.mesh478 import N_MESH
from talkinghead.nodes.ditto.register import (
    DittoFaceTools,
    Registered,
    open_ditto_face_tools,
    register,
)


def light(frames, choice=LARGEST, **options) -> Registered:
    tools = DittoFaceTools(pictures.light_detector())
    return register(len(frames), lambda i: frames[i], tools, choice, **options)


def of_crop(registered: Registered, i: int, *points) -> np.ndarray:
    """Points of a frame in its crop."""
    o2c = np.linalg.inv(registered.c2o[i].astype(np.float64))
    return move_points(np.array(points, np.float64), o2c)


def check_form(made: Registered, n: int) -> None:
    shapes = {"c2o": (n, 3, 3), "eye_open": (n, 2), "eye_ball": (n, 6)}
    for name, shape in shapes.items():
        value = getattr(made, name)
        assert (value.shape, value.dtype) == (shape, np.float32)
        assert np.isfinite(value).all()
    assert (made.found.shape, made.found.dtype) == ((n,), bool)


@pytest.mark.parametrize("angle", [0, 25])
def test_the_crop_stands_upright_around_the_face(angle):
    frame, box = pictures.portrait(640, 480, angle=angle)  # the box is that of the upright face
    made = light(frame[None])
    check_form(made, 1)
    assert made.found.all()
    middle = of_crop(made, 0, ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))[0]
    assert np.abs(middle - CROP_SIZE / 2).max() < 0.12 * CROP_SIZE
    turn = np.deg2rad(angle)
    up = of_crop(made, 0, (320, 240), (320 - 100 * np.sin(turn), 240 - 100 * np.cos(turn)))
    way = (up[1] - up[0]) / np.linalg.norm(up[1] - up[0])
    assert way == pytest.approx([0, -1], abs=0.06)
    # From brows to chin are 1 / 2.3 of the side, which MuseTalk's box of forehead to chin is larger than.
    side = CROP_SIZE * np.linalg.norm(made.c2o[0, :2, 0])
    assert 0.55 < (box[3] - box[1]) / side < 0.65
    assert (made.eye_open > 0.5).all()
    assert not made.eye_ball.any()


def test_the_crop_is_that_of_the_detectors_points():
    frame, _ = pictures.portrait(320, 240)
    (face,) = pictures.light_detector().detect(frame)
    assert np.allclose(light(frame[None]).c2o[0], crop_matrices(face_box(face.points)).c2o, atol=1e-4)


def test_a_clip_with_frames_without_the_face():
    frames, boxes = pictures.clip(9, step=(2.0, 0.0), faceless=(4, 5))
    made = light(frames)
    check_form(made, 9)
    assert np.flatnonzero(~made.found).tolist() == [4, 5]
    for lost, lender in ((4, 3), (5, 6)):
        for name in ("c2o", "eye_open", "eye_ball"):
            assert np.array_equal(getattr(made, name)[lost], getattr(made, name)[lender])
    moved = made.c2o[8, :2, 2] - made.c2o[0, :2, 2]
    assert moved == pytest.approx([16, 0], abs=1.5)
    assert np.diff(boxes[:, 0]).tolist() == pytest.approx([2.0] * 8)


def test_the_chosen_face():
    picture, boxes = pictures.two_people()
    for index, box in enumerate(boxes):
        made = light(picture[None], FaceChoice("index", index=index))
        place = of_crop(made, 0, ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))[0]
        assert np.abs(place - CROP_SIZE / 2).max() < 0.12 * CROP_SIZE
    assert made.notes[0].startswith("2 faces in the picture")
    with pytest.raises(ValueError, match="face 5 was asked for and 2 faces were found"):
        light(picture[None], FaceChoice("index", index=5))


def test_no_face_no_mesh_no_frames():
    with pytest.raises(ValueError, match="no face was found in the one frame"):
        light(pictures.gray(64, 64)[None])
    with pytest.raises(ValueError, match="no face was found in any of 3 frames"):
        light(np.stack([pictures.gray(64, 64)] * 3))
    scene = Scene(still(3), mesh=False)
    with pytest.raises(ValueError, match="scene-1 has no face mesh"):
        register(3, scene.frame, DittoFaceTools(scene), LARGEST)
    with pytest.raises(ValueError, match="0 frames cannot be registered"):
        register(0, scene.frame, DittoFaceTools(scene), LARGEST)


def test_the_work_can_be_stopped():
    def stop():
        raise KeyboardInterrupt

    scene = Scene(still(9))
    for tools in (DittoFaceTools(scene), DittoFaceTools(exact=SquareNets())):
        with pytest.raises(KeyboardInterrupt):
            register(9, scene.frame, tools, LARGEST, stop)
    assert scene.looked == []


def test_tools():
    scene = Scene(still(1))
    assert DittoFaceTools(scene).name == "scene-1"
    assert DittoFaceTools(exact=SquareNets()).name == "squares-1"
    for wrong in ({}, {"light": scene, "exact": SquareNets()}):
        with pytest.raises(ValueError, match="either a light detector or the exact networks"):
            DittoFaceTools(**wrong)
    with pytest.raises(ValueError, match="detector 'fast' is unknown; use one of light, exact"):
        open_ditto_face_tools("fast", [])


def test_the_light_tools_need_no_more_than_the_light_files(tmp_path):
    (tmp_path / "faces").symlink_to(pictures.light_files())
    assert open_ditto_face_tools("light", [tmp_path]).name == "mesh-1"


class SquareNets:
    """A double of `ExactFaces`: squares of MARK are faces; landmarks lie in them; the mesh sees one in a crop's middle.

    Like upstream's landmark network it always answers: without a square near the points it was given, with those.
    """

    name = "squares-1"

    def __init__(self, blind=(), n_mesh=N_MESH):
        self.asked, self.detections, self.blind, self.n_mesh = 0, 0, set(blind), n_mesh

    def boxes(self, picture):
        self.detections += 1
        return np.array([[*face.box, face.score] for face in MarkDetector().detect(picture)]).reshape(-1, 5)

    def landmarks(self, picture, box):
        low, high = np.array(box[:2]), np.array(box[2:4])
        points = np.tile((low + high) / 2, (203, 1))
        points[100], points[101] = low, high
        points[[0, 6, 12, 18, 24, 30, 36, 42], 1] -= (high - low)[1] / 4
        points[[48, 66], 1] += (high - low)[1] / 4
        return points.astype(np.float32)

    def follow(self, picture, points):
        middle = (points[100] + points[101]) / 2
        for box in self.boxes(picture):
            self.detections -= 1
            if np.abs((box[:2] + box[2:4]) / 2 - middle).max() < 40:
                return self.landmarks(picture, box)
        return points

    def mesh(self, crop):
        self.asked += 1
        assert crop.shape == (CROP_SIZE, CROP_SIZE, 3)
        if self.asked - 1 in self.blind or np.abs(crop[300, 256].astype(int) - MARK).max() > 40:
            return None
        points = np.random.default_rng(crop[300, 256].sum()).normal(size=(self.n_mesh, 3)).astype(np.float32)
        return points if self.n_mesh == N_MESH else points[:, :2]


def exact(frames, choice=LARGEST, nets=None):
    nets = nets or SquareNets()
    return register(len(frames), lambda i: frames[i], DittoFaceTools(exact=nets), choice), nets


def squares(*corners, side=60):
    return [
        marked(400, 300, *((x, y, x + side, y + side) for x, y in places)) if places else marked(400, 300)
        for places in corners
    ]


def test_the_detector_is_asked_once():
    made, nets = exact(squares(*[[(50 + 10 * i, 80)] for i in range(6)]))
    check_form(made, 6)
    assert made.found.all()
    assert nets.asked == 6
    assert np.diff(made.c2o[:, 0, 2]) == pytest.approx([10] * 5, abs=0.1)
    assert made.eye_ball.any()
    assert made.notes == ()


def test_a_mesh_without_irises():
    made, _ = exact(squares([(50, 80)]), nets=SquareNets(n_mesh=468))
    assert not made.eye_ball.any()
    assert made.eye_open.any()


def test_frames_without_a_face_are_told_and_the_face_is_found_again():
    made, nets = exact(squares([(50, 80)], [(52, 80)], [], [], [(60, 84)], [(62, 84)]))
    assert made.found.tolist() == [True, True, False, False, True, True]
    assert np.array_equal(made.c2o[2], made.c2o[1])
    assert np.array_equal(made.c2o[3], made.c2o[4])
    assert made.notes == ()


def test_a_first_face_late_in_the_clip():
    made, _ = exact(squares([], [], [(60, 84)]))
    assert made.found.tolist() == [False, False, True]
    assert (made.c2o == made.c2o[2]).all()


def test_somebody_else_is_not_taken():
    """Two people, one leaves: the other one is not taken for her; a cut with one face in the whole clip is followed."""
    made, _ = exact(squares([(50, 80), (300, 80)], [(300, 80)], [(50, 80), (300, 80)]), FaceChoice("index"))
    assert made.found.tolist() == [True, False, True]
    assert made.notes == (
        "2 faces in the picture; one of them is followed",
        "faces in frames 1 are not taken: somebody else's",
    )
    cut, _ = exact(squares([(50, 80)], [(50, 80)], [(300, 80)]))
    assert cut.found.all()
    assert cut.notes == ("the face jumps at frames 2: taken for the same person after a cut",)


def test_eyes_that_are_not_seen_are_borrowed():
    frames = squares([(50, 80)], [(52, 80)], [(54, 80)])
    # The second frame is looked at twice: as a follower and, as nothing is seen there, as what the detector found.
    made, nets = exact(frames, nets=SquareNets(blind=(1, 2)))
    assert made.found.all()
    assert nets.asked == 4
    assert np.array_equal(made.eye_open[1], made.eye_open[0])
    assert made.notes == (
        "the face mesh sees no face in the crops of frames 1: the eyes are those of the nearest frame",
    )
    with pytest.raises(ValueError, match="the face mesh sees no face in the crops of any of 3 frames"):
        exact(frames, nets=SquareNets(blind=range(9)))


def test_no_face_and_landmarks_in_one_point():
    with pytest.raises(ValueError, match="no face was found in any of 2 frames"):
        exact(squares([], []))
    nets = SquareNets()
    nets.landmarks = lambda picture, box: np.full((203, 2), 9, np.float32)
    with pytest.raises(ValueError, match="no face was found in the one frame"):
        exact(squares([(50, 80)]), nets=nets)


def test_nearest():
    assert nearest(np.array([2, 5, 6]), 9).tolist() == [2, 2, 2, 2, 5, 5, 6, 6, 6]
    assert nearest(np.array([3]), 5).tolist() == [3] * 5
    assert nearest(np.array([1, 3]), 4).tolist() == [1, 1, 1, 3]
