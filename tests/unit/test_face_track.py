"""Following a face with a scripted detector that says exactly what it sees."""

import numpy as np
import pytest
from face_scene import Scene, gone, lost, still

from talkinghead.nodes.core.face_track import track_face
from talkinghead.nodes.core.faces import FaceChoice, parse_choice


def test_key_frames_alone_are_looked_at_and_steady_motion_comes_back_exactly():
    scene = Scene([[(0, 60 + 2 * i, 40 + i)] for i in range(15)])
    track = scene.track()
    assert scene.looked == [0, 4, 8, 12, 14]
    assert scene.asked == list(range(15))  # once each, in order: a decoder need not seek
    assert track.found.all()
    assert not track.held.any()
    assert track.notes == ()
    x, y = 60 + 2 * np.arange(15), 40 + np.arange(15)
    assert np.allclose(track.boxes, np.stack([x, y, x + 48, y + 48], 1), atol=1e-4)
    assert np.allclose(track.points[:, 67], track.boxes[:, 2:], atol=1e-4)
    assert np.allclose(track.mesh[:, 0], track.boxes[:, 2:], atol=1e-4)
    assert (track.boxes.dtype, track.points.dtype, track.mesh.dtype) == (np.float32,) * 3
    assert (track.points.shape, track.mesh.shape) == ((15, 68, 2), (15, 468, 2))


def test_large_frames_are_looked_at_small_and_come_back_large():
    scene = Scene(still(5), scale=3)
    track = scene.track()
    assert scene.sizes == {(270, 480, 3)}
    assert np.allclose(track.boxes, 3 * np.array([100, 60, 148, 108]), atol=1e-3)
    assert np.allclose(track.points[0, 0], (300, 180), atol=1e-3)
    assert np.allclose(track.mesh[0, 0], (444, 324), atol=1e-3)
    whole = Scene(still(5), scale=3)
    whole.track(proxy_side=0)
    assert whole.sizes == {(540, 960, 3)}


def test_one_frame_and_stride_one():
    scene = Scene(still(1))
    assert scene.track().found.tolist() == [True]
    assert scene.looked == [0]
    scene = Scene(still(5))
    scene.track(stride=1)
    assert scene.looked == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("n", "missing"),
    [
        (12, (4, 5, 6)),  # a key frame among them
        (13, (5, 6, 7)),  # between two good key frames
        (13, (6,)),
        (60, tuple(range(55, 60))),
        (13, (0, 1, 2, 3, 4, 5)),
        (13, (0, 12)),
        (14, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)),
    ],
)
def test_frames_without_the_face_are_found_exactly(n, missing):
    track = Scene(gone(still(n), *missing)).track()
    assert lost(track) == list(missing)
    assert not track.held.any()
    assert track.notes == ()  # `found` says it; who builds says what becomes of them


def test_rows_without_the_face_are_copies_of_the_nearest_found():
    track = Scene(gone([[(0, 60 + 2 * i, 60)] for i in range(13)], 4, 5, 6, 7)).track()
    assert lost(track) == [4, 5, 6, 7]
    assert np.array_equal(track.boxes[[4, 5]], track.boxes[[3, 3]])
    assert np.array_equal(track.points[[6, 7]], track.points[[8, 8]])
    assert np.array_equal(track.mesh[[6, 7]], track.mesh[[8, 8]])


def test_frames_beside_a_faceless_one_keep_the_motion():
    people = gone([[(0, 60 + 4 * i, 60)] for i in range(13)], 6)
    for smooth in (False, True):
        track = Scene(people).track(smooth=smooth)
        assert lost(track) == [6]
        assert np.allclose(track.boxes[track.found, 0], 60 + 4 * np.flatnonzero(track.found), atol=1e-3)


def test_no_face_at_all_is_no_error_here():
    track = Scene([[] for _ in range(9)]).track()
    assert not track.found.any()
    assert not track.held.any()
    assert track.mesh is None
    assert track.boxes.shape == (9, 4)
    assert track.points.shape == (9, 68, 2)
    assert track.notes == ("no face in any of 9 frames",)


@pytest.mark.parametrize("blind", [(4,), (8,), (4, 5, 6, 7, 8), (12,), (0, 1)])
def test_a_face_the_detector_misses_is_held(blind):
    track = Scene([[(0, 60 + i, 60)] for i in range(13)], blind).track()
    assert track.found.all()
    assert set(np.flatnonzero(track.held)) == set(blind)
    x = 60.0 + np.arange(13)
    if 12 in blind:
        x[12] = 71  # nothing to interpolate to: the last place seen
    if 0 in blind:
        x[:2] = 62
    assert np.allclose(track.boxes[:, 0], x, atol=1e-3)
    assert "face not detected, place interpolated" in track.notes[0]


def test_a_missed_face_that_has_moved_on_is_not_held():
    """It would be painted where it was."""
    track = Scene([[(0, 60 + 12 * i, 60)] for i in range(13)], blind=(10, 11, 12)).track()
    assert lost(track) == [10, 11, 12]


def test_a_darker_or_brighter_face_is_the_same():
    scene = Scene(still(9))
    lit = [0.4 + 0.07 * i for i in range(9)]

    def frame(i):
        picture = (scene.frame(i) * lit[i]).astype(np.uint8)
        picture[:8, :8] = i
        return picture

    assert track_face(9, frame, scene).found.all()
    assert scene.looked == [0, 4, 8]


def test_a_cut_ends_the_interpolation_where_it_is():
    people = still(6, x=40) + still(7, x=240)
    track = Scene(people).track()
    assert track.found.all()
    assert np.allclose(track.boxes[:, 0], [40] * 6 + [240] * 7, atol=1e-3)
    assert track.notes == ("the face jumps at frames 6: taken for the same person after a cut",)


def test_another_person_elsewhere_is_not_taken():
    track = Scene(still(6, x=40) + still(7, person=1, x=240)).track()
    assert lost(track) == list(range(6, 13))


def test_two_people_and_the_chosen_one_leaves():
    both = [(0, 60, 60), (1, 200, 60)]
    people = [both if i < 6 or i > 9 else [both[0]] for i in range(14)]
    track = Scene(people).track(parse_choice("1"))
    assert lost(track) == [6, 7, 8, 9]
    assert np.allclose(track.boxes[track.found, 0], 200, atol=1e-3)
    assert "2 faces in the picture; the one at 224,84 is followed" in track.notes


@pytest.mark.parametrize(("text", "x"), [("0", 60), ("1", 200), ("250,80", 200), ("largest", 60)])
def test_the_choice_holds_for_the_whole_clip(text, x):
    # In the middle the detector's first one changes, and the order from the left with it.
    both, third = [(0, 60, 60), (1, 200, 60)], (2, 5, 120)
    people = [both if i < 6 else [third, *both] for i in range(13)]
    assert np.allclose(Scene(people).track(parse_choice(text)).boxes[:, 0], x, atol=1e-3)


def test_people_who_come_close_keep_their_places():
    people = [[(0, 40 + 3 * i, 30), (1, 240 - 3 * i, 90)] for i in range(25)]
    boxes = Scene(people).track(parse_choice("0")).boxes
    assert np.allclose(boxes[:, 0], 40 + 3 * np.arange(25), atol=1e-3)
    assert np.allclose(boxes[:, 1], 30, atol=1e-3)


def test_a_quick_face_is_followed_frame_by_frame_also_beside_another():
    quick = [(0, 20 + 16 * i, 20) for i in range(14)]  # more than its own width between two key frames
    track = Scene([[face] for face in quick]).track()
    assert track.found.all()
    assert track.notes == ()
    assert np.allclose(track.boxes[:, 0], [x for _, x, _ in quick], atol=1e-3)
    track = Scene([[face, (1, 200, 120)] for face in quick]).track(parse_choice("0"))
    assert track.found.all()
    assert np.allclose(track.boxes[:, 0], [x for _, x, _ in quick], atol=1e-3)


def test_index_without_that_many_faces():
    with pytest.raises(ValueError, match="face 1 was asked for and 1 face was found"):
        Scene(still(5)).track(FaceChoice("index", index=1))


def test_a_detector_without_a_mesh():
    assert Scene(still(5), mesh=False).track().mesh is None


def test_check_runs_before_every_detection_and_can_stop_the_work():
    scene, calls = Scene(gone(still(13), 4)), []
    scene.track(check=lambda: calls.append(len(scene.looked)))
    assert calls == list(range(len(scene.looked)))

    class Stop(Exception):
        pass

    def stop():
        if len(scene.looked) == 2:
            raise Stop

    scene = Scene(still(40))
    with pytest.raises(Stop):
        scene.track(check=stop)
    assert len(scene.looked) == 2


def test_arguments_that_do_not_work():
    for options in ({"stride": 0}, {"proxy_side": -1}):
        with pytest.raises(ValueError, match="at least 1, 1 and 0"):
            Scene(still(5)).track(**options)
    with pytest.raises(ValueError, match="0 frames"):
        Scene([]).track()
    with pytest.raises(ValueError, match=r"frame 0 must be uint8 \(height, width, 3\), got float32"):
        track_face(1, lambda i: np.zeros((8, 8, 3), np.float32), Scene(still(1)))
