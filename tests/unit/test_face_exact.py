"""Upstream's face path: a stand-in for DWPose through the real onnxruntime, BiSeNet with the goldens' weights.

The stand-in has the inputs and outputs of dw-ll_ucoco_384.onnx and puts every point on the brightest spot of what it is
shown, so it says where each picture it saw came from. It knows nothing of faces.
"""

import faces as pictures
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import TESTS

from talkinghead.nodes.core.blend import crop_geometry
from talkinghead.nodes.core.faces import Face
from talkinghead.nodes.musetalk import dwpose
from talkinghead.nodes.musetalk.bisenet import BiSeNet
from talkinghead.nodes.musetalk.exact_faces import BisenetParser, DwposeDetector
from talkinghead.nodes.musetalk.masks import crop_square
from talkinghead.nodes.musetalk.parity_recipe import recipe_network, recipe_tensor, synthetic_frame

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def brightest(path, shape=(1, 3, 384, 288), names=("simcc_x", "simcc_y"), n_points=133, gain=1.0, dtype=1):
    """Write the stand-in: largest value of each column and row, every value twice, the same for all points."""
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, outputs, constants = [], [], []
    for name, axis, length in ((names[0], 2, shape[3]), (names[1], 3, shape[2])):
        bins = [1, n_points, 2 * length]
        constants += [
            numpy_helper.from_array(np.array([1, axis]), f"{name}_axes"),
            numpy_helper.from_array(np.arange(2 * length) // 2, f"{name}_twice"),
            numpy_helper.from_array(np.array(bins), f"{name}_shape"),
            numpy_helper.from_array(np.array(gain, {1: np.float32, 11: np.float64}[dtype]), f"{name}_gain"),
        ]
        nodes += [
            helper.make_node("ReduceMax", ["input", f"{name}_axes"], [f"{name}_most"], keepdims=0),
            helper.make_node("Mul", [f"{name}_most", f"{name}_gain"], [f"{name}_gained"]),
            helper.make_node("Gather", [f"{name}_gained", f"{name}_twice"], [f"{name}_row"], axis=1),
            helper.make_node("Expand", [f"{name}_row", f"{name}_shape"], [name]),
        ]
        outputs.append(helper.make_tensor_value_info(name, dtype, bins))
    inputs = [helper.make_tensor_value_info("input", dtype, shape)]
    graph = helper.make_graph(
        nodes, "stand-in", inputs, outputs[::-1], constants
    )  # results are bound by name
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


class Seen:
    """A presence detector that sees what it is told."""

    name = "seen-1"

    def __init__(self, *boxes):
        mesh = np.ones((468, 2), np.float32)
        self.faces = [Face(box, 0.8, np.zeros((68, 2), np.float32), mesh) for box in boxes]

    def detect(self, picture):
        return self.faces


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    return brightest(tmp_path_factory.mktemp("dwpose") / "stand-in.onnx")


def spotted(width, height, *spots):
    picture = pictures.gray(width, height, 40)
    for x, y, level in spots:
        picture[y - 8 : y + 8, x - 8 : x + 8] = level
    return picture


def numpy_run(batch):
    """The stand-in in numpy."""
    x, y = (batch.max((1, axis)).repeat(2, 1)[:, None].repeat(133, 1) for axis in (2, 3))
    return x, y


def test_one_face_is_upstreams_whole_picture(stand_in):
    picture = spotted(400, 300, (250, 120, 255))
    (face,) = DwposeDetector(stand_in, Seen((200, 60, 300, 180))).detect(picture)
    whole, _ = dwpose.find_points(picture, numpy_run)
    assert np.array_equal(face.points, whole[dwpose.FACE].astype(np.int32).astype(np.float32))
    assert np.abs(face.points - (250, 120)).max() <= 10  # inside the spot
    assert (face.points == np.rint(face.points)).all()  # whole pixels, as upstream's
    assert face.points.dtype == np.float32
    assert face.box == (200, 60, 300, 180)
    assert face.score == 0.8
    assert face.mesh.shape == (468, 2)


def test_a_spot_outside_the_face_wins_because_the_whole_picture_is_seen(stand_in):
    picture = spotted(400, 300, (250, 120, 200), (40, 260, 255))
    (face,) = DwposeDetector(stand_in, Seen((200, 60, 300, 180))).detect(picture)
    assert np.abs(face.points - (40, 260)).max() <= 10


def test_several_faces_get_points_of_their_own(stand_in):
    spots = ((120, 100, 180), (480, 140, 255))
    boxes = [(x - 30, y - 30, x + 30, y + 30) for x, y, _ in spots]
    found = DwposeDetector(stand_in, Seen(*boxes[::-1])).detect(spotted(640, 300, *spots))
    assert [face.box for face in found] == boxes  # left to right
    for face, (x, y, _) in zip(found, spots, strict=True):
        assert np.abs(face.points - (x, y)).max() <= 9


def test_faces_at_and_beyond_the_border(stand_in):
    boxes = [(-40, -40, 20, 20), (600, 260, 700, 360), (-300, 20, -200, 120), (700, 350, 760, 410)]
    found = DwposeDetector(stand_in, Seen(*boxes)).detect(spotted(640, 300, (10, 10, 255), (620, 280, 220)))
    assert len(found) == 4
    assert all(np.isfinite(face.points).all() for face in found)
    assert np.abs(found[1].points - (10, 10)).max() <= 9
    assert np.abs(found[2].points - (620, 280)).max() <= 9


def test_no_presence_means_no_face_and_no_run(stand_in):
    detector = DwposeDetector(stand_in, Seen())
    detector._session = None
    assert detector.detect(pictures.presenter()) == []


def test_real_presence_and_stand_in_together(stand_in):
    (face,) = DwposeDetector(stand_in, pictures.light_detector()).detect(pictures.presenter())
    assert face.box == pictures.light_detector().detect(pictures.presenter())[0].box
    assert DwposeDetector.name == "dwpose-1"


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (1, 3, 256, 192)},
        {"names": ("simcc_x", "output")},
        {"n_points": 17},
        {"dtype": 11},
    ],
)
def test_another_network_is_refused(tmp_path, options):
    path = brightest(tmp_path / "wrong.onnx", **options)
    with pytest.raises(
        ValueError, match=r"wrong.onnx is another network.*takes float \(batch, 3, 384, 288\)"
    ):
        DwposeDetector(path, Seen())


def test_free_batch_size_is_accepted(tmp_path):
    path = brightest(tmp_path / "free.onnx", shape=("batch", 3, 384, 288))
    assert len(DwposeDetector(path, Seen((0, 0, 50, 50))).detect(pictures.gray(64, 64))) == 1


def test_files_and_providers_that_do_not_work(tmp_path, stand_in):
    with pytest.raises(ValueError, match="models download dwpose"):
        DwposeDetector(tmp_path / "none.onnx", Seen())
    (tmp_path / "junk.onnx").write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match=r"junk.onnx cannot be opened as ONNX"):
        DwposeDetector(tmp_path / "junk.onnx", Seen())
    with pytest.raises(ValueError, match=r"no provider NoSuchProvider; here: .*CPUExecutionProvider"):
        DwposeDetector(stand_in, Seen(), ["NoSuchProvider"])
    with pytest.raises(ValueError, match="none given"):
        DwposeDetector(stand_in, Seen(), [])


def test_values_that_are_not_finite(tmp_path):
    path = brightest(tmp_path / "nan.onnx", gain=float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        DwposeDetector(path, Seen((0, 0, 50, 50))).detect(pictures.gray(64, 64))


def test_without_onnxruntime(monkeypatch, stand_in):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="pip install onnxruntime"):
        DwposeDetector(stand_in, Seen())


# --- parsing ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights():
    return {key: recipe_tensor(key, value.shape) for key, value in BiSeNet().state_dict().items()}


def test_parser_gives_the_goldens_labels(tmp_path, weights):
    """The `centre` square of the goldens: pixels of each class, within the ties that float noise can turn."""
    save_file(weights, tmp_path / "79999_iter.safetensors")
    parser = BisenetParser(tmp_path / "79999_iter.safetensors")
    (tmp_path / "79999_iter.safetensors").unlink()  # nothing is a view into the file
    frame = np.ascontiguousarray(synthetic_frame()[..., ::-1])
    labels = parser.labels(crop_square(frame, crop_geometry((250, 80, 390, 270))))
    assert labels.shape == (512, 512)
    assert labels.dtype == np.uint8
    expected = load_file(TESTS / "golden" / "musetalk" / "bisenet.safetensors")[
        "centre512_label_counts"
    ].numpy()
    counts = np.bincount(labels.ravel(), minlength=len(expected))
    assert np.abs(counts - expected).max() <= 8


def test_parser_takes_a_network_and_any_square():
    net = recipe_network(BiSeNet, 19, torch.float32, "cpu")
    labels = BisenetParser(net).labels(pictures.presenter()[::4, ::4])
    assert labels.shape == (512, 512)
    assert labels.max() <= 18


def test_parser_weights_that_do_not_fit(tmp_path, weights):
    less = {key: value for key, value in weights.items() if key != "ffm.conv1.weight"}
    torch.save(less, tmp_path / "less.pth")
    with pytest.raises(ValueError, match=r"less.pth does not fit BiSeNet: 1 missing \(ffm.conv1.weight\)"):
        BisenetParser(tmp_path / "less.pth")
    with pytest.raises(ValueError, match="nothing.pth"):
        BisenetParser(tmp_path / "nothing.pth")


def test_what_is_no_square(weights):
    parser = BisenetParser(torch.nn.Identity())
    for square in (
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 3), np.float32),
        np.zeros((0, 0, 3), np.uint8),
    ):
        with pytest.raises(ValueError, match=r"must be uint8 \(side, side, 3\)"):
            parser.labels(square)
