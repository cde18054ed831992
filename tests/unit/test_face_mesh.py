"""The light detector on the real networks: known faces found at the right place, everything else refused or survived."""

import json
import threading

import faces as pictures
import numpy as np
import pytest
from media import decode

from talkinghead.nodes.core import face_mesh
from talkinghead.nodes.core.face_mesh import (
    FULL_RANGE,
    LANDMARK,
    SHORT_RANGE,
    MeshDetector,
    box_iou,
    load_mesh_detector,
    merge_overlapping,
)
from talkinghead.nodes.core.mesh_points import IBUG_68, ibug_points
from talkinghead.nodes.musetalk.boxes import face_box


@pytest.fixture(scope="module")
def detector():
    return pictures.light_detector()


def talking_box(face):
    """MuseTalk's box of a detected face; the last argument is a fallback that no test wants."""
    found = face_box(face.points, (0, 0, 1, 1))
    assert not found.from_detector
    return found.box


def test_demo_presenters(detector):
    """IoU with the boxes of their drawing: 0.85, 0.85, 0.87 measured (a photo's, with MuseTalk's: 0.93)."""
    for name, about in json.loads((pictures.PRESENTERS / "presenters.json").read_text()).items():
        path = pictures.PRESENTERS / about["file"]
        picture = pictures.presenter() if path.suffix == ".png" else decode(path)[0]
        (face,) = detector.detect(picture)
        assert face.score > 0.85, name
        assert pictures.overlap(talking_box(face), about["boxes"][0]) > 0.82, name
        assert face.points.shape == (68, 2)
        assert face.mesh.shape == (468, 2)
        assert (face.points.dtype, face.mesh.dtype) == (np.float32, np.float32)
        assert np.array_equal(face.points, face.mesh[IBUG_68])


def test_points_are_where_the_features_are(detector):
    """Positions read off the drawing, 512 x 512."""
    (face,) = detector.detect(pictures.presenter())
    places = {
        "eye on the left": (range(36, 42), 214, 217),
        "eye on the right": (range(42, 48), 302, 217),
        "mouth": (range(48, 68), 256, 316),
        "below the nose": ([33], 256, 286),
        "chin": ([8], 255, 373),
    }
    for name, (group, x, y) in places.items():
        assert np.abs(face.points[list(group)].mean(0) - (x, y)).max() < 6, name


@pytest.mark.parametrize("face_width", [720, 360, 180, 90])
@pytest.mark.parametrize("side", [480, 1920])
def test_portraits_of_any_distance(detector, face_width, side):
    whole, box = pictures.portrait(1080, 1920, (540, 900), face_width)
    share = side / 1920
    picture = pictures.cv2.resize(whole, None, fx=share, fy=share, interpolation=pictures.cv2.INTER_AREA)
    (face,) = detector.detect(picture)
    scaled = type(face)(face.box, face.score, face.points / np.float32(share), None)
    assert pictures.overlap(talking_box(scaled), box) > 0.78


def test_two_people_come_left_to_right(detector):
    picture, boxes = pictures.two_people(sizes=(0.8, 1.2))
    found = detector.detect(picture)
    assert len(found) == 2
    for face, box in zip(found, boxes, strict=True):
        assert pictures.overlap(talking_box(face), box) > 0.78
    mirrored = detector.detect(picture[:, ::-1])
    assert [round(f.centre[0]) for f in mirrored] == pytest.approx(
        [640 - f.centre[0] for f in found[::-1]], abs=4
    )


@pytest.mark.parametrize("angle", [-45, -20, 20, 45, 90])
def test_rolled_heads(detector, angle):
    (face,) = detector.detect(pictures.portrait(640, 640, angle=angle)[0])
    left, right = face.points[36:42].mean(0), face.points[42:48].mean(0)
    rolled = np.degrees(np.arctan2(left[1] - right[1], right[0] - left[0]))
    assert abs(rolled - angle) < 4


@pytest.mark.parametrize(
    ("size", "centre", "width"),
    [
        ((320, 320), (169, 154), 216),  # report 1: the box begins above the picture
        ((640, 360), (60, 200), 120),  # at the left border
        ((640, 360), (582, 200), 120),  # leaves it on the right
        ((640, 360), (320, 10), 120),  # forehead and eyes cut off
    ],
)
def test_a_face_at_the_border(detector, size, centre, width):
    picture, box = pictures.portrait(*size, centre, width)
    (face,) = detector.detect(picture)
    assert np.isfinite(face.points).all()
    shown = (max(0, box[0]), max(0, box[1]), *box[2:])
    assert pictures.overlap(talking_box(face), shown) > 0.6


@pytest.mark.parametrize("centre", [(10, 200), (320, -20), (630, 300), (600, 350), (-60, 180), (700, 500)])
def test_a_face_that_is_mostly_outside_is_no_error(detector, centre):
    for face in detector.detect(pictures.portrait(640, 360, centre, 120)[0]):
        assert np.isfinite(face.points).all()
        assert np.isfinite(face.box).all()


def test_a_narrow_side_view_is_no_error(detector):
    """The drawing squeezed to a quarter of its width stands in for a profile."""
    picture = pictures.gray(320, 240)
    picture[:, 130:190] = pictures.cv2.resize(
        pictures.presenter(), (60, 240), interpolation=pictures.cv2.INTER_AREA
    )
    for face in detector.detect(picture):
        assert np.isfinite(face.points).all()


@pytest.mark.parametrize("size", [(64, 64), (100, 64), (128, 128)])
def test_pictures_smaller_than_the_network(detector, size):
    picture, box = pictures.portrait(*size, face_width=0.45 * min(size))
    (face,) = detector.detect(picture)
    assert pictures.overlap(talking_box(face), box) > 0.7


@pytest.mark.parametrize("size", [(1, 1), (20, 20), (2000, 6), (6, 2000), (3000, 100)])
def test_pictures_of_odd_shapes_have_no_face(detector, size):
    assert detector.detect(pictures.gray(*size)) == []


def test_no_face_in_gray_noise_and_bars(detector):
    noise = np.random.default_rng(1).integers(0, 256, (360, 640, 3), np.uint8)
    bars = np.tile(np.uint8(255) * (np.arange(640) // 20 % 2).astype(np.uint8)[None, :, None], (360, 1, 3))
    for picture in (pictures.gray(640, 360), noise, bars):
        assert detector.detect(picture) == []


def test_same_picture_same_answer_also_as_a_view_and_from_threads(detector):
    picture, _ = pictures.portrait(320, 240)
    first = detector.detect(picture)[0]
    wide = np.zeros((240, 640, 3), np.uint8)
    wide[:, ::2] = picture
    results = [detector.detect(wide[:, ::2])[0].points]

    def work():
        results.extend(detector.detect(picture)[0].points for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 10
    assert all(np.array_equal(points, first.points) for points in results)


def test_one_file_is_enough_and_the_order_does_not_matter(detector):
    folder = pictures.light_files()
    picture, _ = pictures.portrait(320, 240)
    expected = detector.detect(picture)[0].points
    turned = MeshDetector([folder / FULL_RANGE, folder / SHORT_RANGE], folder / LANDMARK)
    assert np.abs(turned.detect(picture)[0].points - expected).max() < 0.01
    for name in (SHORT_RANGE, FULL_RANGE):
        (face,) = MeshDetector(folder / name, folder / LANDMARK).detect(picture)
        assert np.abs(face.points - expected).max() < 2


def test_what_is_no_picture(detector):
    for picture in (
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8, 3), np.float32),
    ):
        with pytest.raises(ValueError, match=r"must be uint8 \(height, width, 3\)"):
            detector.detect(picture)
    with pytest.raises(ValueError, match=r"\(0, 8, 3\)"):
        detector.detect(np.zeros((0, 8, 3), np.uint8))


# --- files -----------------------------------------------------------------------------------------------------


def test_files_that_are_missing_damaged_or_of_another_network(tmp_path):
    folder = pictures.light_files()
    with pytest.raises(ValueError, match="talkinghead models download face-light"):
        MeshDetector(tmp_path / SHORT_RANGE, folder / LANDMARK)
    junk = tmp_path / "junk.tflite"
    for content in (b"", b"<html>" * 50, (folder / SHORT_RANGE).read_bytes()[:64]):
        junk.write_bytes(content)
        with pytest.raises(ValueError, match=r"junk.tflite .*cannot be read as a tflite"):
            MeshDetector(junk, folder / LANDMARK)
    with pytest.raises(ValueError, match="face_landmark.tflite is not a BlazeFace detector"):
        MeshDetector(folder / LANDMARK, folder / LANDMARK)
    with pytest.raises(ValueError, match="face_detection_short_range.tflite is not the 468-point face mesh"):
        MeshDetector(folder / SHORT_RANGE, folder / SHORT_RANGE)
    with pytest.raises(ValueError, match="at least one"):
        MeshDetector([], folder / LANDMARK)


def test_a_folder_with_any_name(tmp_path):
    folder = tmp_path / "caña 日本 x"
    folder.mkdir()
    for name in (SHORT_RANGE, FULL_RANGE, LANDMARK):
        (folder / name).write_bytes((pictures.light_files() / name).read_bytes())
    assert len(load_mesh_detector(lambda name: folder / name).detect(pictures.presenter())) == 1


def test_an_opencv_that_reads_no_tflite(monkeypatch):
    monkeypatch.delattr(pictures.cv2.dnn, "readNetFromTFLite")
    folder = pictures.light_files()
    with pytest.raises(ImportError, match="opencv-python>=5"):
        MeshDetector(folder / SHORT_RANGE, folder / LANDMARK)


def test_an_opencv_that_loses_an_output(monkeypatch):
    """What the default engine of OpenCV 5 does, and an OpenCV without the classic one may."""
    read = pictures.cv2.dnn.readNetFromTFLite
    monkeypatch.setattr(pictures.cv2.dnn, "readNetFromTFLite", lambda name, engine: read(name))
    folder = pictures.light_files()
    with pytest.raises(ValueError, match="opencv-python>=5"):
        MeshDetector(folder / SHORT_RANGE, folder / LANDMARK)


def test_networks_are_read_once_until_a_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(face_mesh, "_CACHE", {})
    for name in (SHORT_RANGE, FULL_RANGE, LANDMARK):
        (tmp_path / name).write_bytes((pictures.light_files() / name).read_bytes())
    asked = []

    def find(name):
        asked.append(name)
        return tmp_path / name

    first = load_mesh_detector(find)
    assert load_mesh_detector(find) is first
    assert set(asked) == {SHORT_RANGE, FULL_RANGE, LANDMARK}
    (tmp_path / LANDMARK).write_bytes((tmp_path / LANDMARK).read_bytes() + b"\0")
    assert load_mesh_detector(find) is not first
    assert len(face_mesh._CACHE) == 1


# --- the parts -------------------------------------------------------------------------------------------------


def row(score, *box):
    return np.array([score, *box, *[0.0] * 12])


def test_overlapping_candidates_become_their_weighted_mean():
    rows = np.stack(
        [row(0.6, 2, 0, 12, 10), row(0.9, 0, 0, 10, 10), row(0.7, 50, 50, 60, 60), row(0.8, 9, 9, 19, 19)]
    )
    merged = merge_overlapping(rows)
    assert [m[0] for m in merged] == [0.9, 0.8, 0.7]
    assert merged[0][1:5] == pytest.approx([0.8, 0, 10.8, 10])
    assert merge_overlapping(np.zeros((0, 17))) == []


def test_box_iou():
    box = np.array([0.0, 0, 10, 10])
    others = np.array([[0.0, 0, 10, 10], [5, 0, 15, 10], [10, 10, 20, 20], [3, 3, 3, 9]])
    assert box_iou(box, others) == pytest.approx([1, 1 / 3, 0, 0])


def test_anchors():
    short = face_mesh.blaze_anchors(896)
    assert short.shape == (896, 2)
    assert short[:4].tolist() == [[1 / 32, 1 / 32]] * 2 + [[3 / 32, 1 / 32]] * 2
    assert short[-1].tolist() == [15 / 16, 15 / 16]


def test_table_of_68():
    assert IBUG_68.shape == (68,)
    assert len(set(IBUG_68.tolist())) == 68
    mesh = np.stack([np.arange(468), -np.arange(468)], 1)
    assert ibug_points(mesh)[29].tolist() == [5, -5]
    with pytest.raises(ValueError, match=r"\(468, 2\)"):
        ibug_points(mesh[:, :1])
