"""Upstream's face networks as ONNX files: toy graphs with the official tensors' names through the real onnxruntime.

The graphs answer constants, so what comes out tells which output was read and how it was used.
"""

from __future__ import annotations

import faces as pictures
import numpy as np
import pytest

from talkinghead.nodes.core.faces import LARGEST
from talkinghead.nodes.core.models import MissingModel
from talkinghead.nodes.ditto import detect, eyes, landmarks, mesh478
from talkinghead.nodes.ditto.crop import crop_matrices, crop_picture, face_box
from talkinghead.nodes.ditto.exact_faces import FILES, OnnxNet, find_exact, open_exact
from talkinghead.nodes.ditto.official import ONNX_HOMES
from talkinghead.nodes.ditto.register import open_ditto_face_tools, register

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(5)
SQUARE = (1, 3, 512, 512)


def graph(path, shape, outputs, name="input", dtype=np.float32, declared=None):
    """Write a graph that answers `outputs` (name -> array), whatever it is shown.

    declared: name -> shape that the file says its output has.
    """
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    values = {key: np.asarray(value, dtype) for key, value in outputs.items()}
    constants = [onnx.numpy_helper.from_array(value, f"{key}_is") for key, value in values.items()]
    nodes = [helper.make_node("Identity", [f"{key}_is"], [key]) for key in values]
    infos = [
        helper.make_tensor_value_info(key, kind, (declared or {}).get(key, value.shape))
        for key, value in values.items()
    ]
    inputs = [helper.make_tensor_value_info(name, kind, shape)]
    made = helper.make_graph(nodes, "constant", inputs, infos, constants)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def retina():
    """One face of 0.9 with the box (232, 216, 296, 312) of the input."""
    scores, boxes, points = (
        [np.zeros(shape, np.float32) for shape in shapes] for shapes in detect.output_shapes().values()
    )
    row = 2 * (16 * 32 + 16)
    scores[1][row], boxes[1][row] = 0.9, (1.5, 2.5, 2.5, 3.5)
    return [*scores, *boxes, *points]


def ring(count, radius, centre=(0.0, 0.0)):
    """Points around `centre`, those that make eyes and mouth upright."""
    angle = np.arange(count) / count * 2 * np.pi
    points = radius * np.stack([np.cos(angle), np.sin(angle)], 1) + centre
    left, right, mouth = {
        106: ((33, 35, 40, 39), (87, 89, 94, 93), (52, 61)),
        203: ((0, 6, 12, 18), (24, 30, 36, 42), (48, 66)),
    }[count]
    for indices, place in ((left, (-0.2, -0.2)), (right, (0.2, -0.2)), (mouth, (0, 0.3))):
        points[list(indices)] = np.array(place) * radius + centre
    return points.astype(np.float32)


POINTS_106 = ring(106, 0.5).reshape(1, -1)
POINTS_203 = ring(203, 0.3, (0.5, 0.5)).reshape(1, -1)
MESH = RNG.uniform(60, 200, (1, 1, 1, 1434)).astype(np.float32)
DECLARED = {f"out{i}": ("n", width) for i, width in enumerate([1] * 3 + [4] * 3 + [10] * 3)}


def blaze():
    regressors = np.zeros((1, 896, 16), np.float32)
    regressors[0, 272, 2:4], regressors[0, 272, 6:8] = (60, 50), (20, 5)
    scores = np.full((1, 896, 1), -9, np.float32)
    scores[0, 272] = 2
    return {"regressors": regressors, "classificators": scores}


def onnx_set(root, folder="ditto/ditto_onnx", irises=True):
    """The files of ditto_onnx."""
    home = root / folder
    names = [f"{kind}{i}" for kind in ("scores", "boxes", "kps") for i in (1, 2, 3)]
    # Named outputs are found wherever they stand.
    answers = dict(sorted(zip(names, retina(), strict=True)))
    graph(home / "insightface_det.onnx", SQUARE, answers, "image")
    graph(home / "landmark106.onnx", (1, 3, 192, 192), {"fc1": POINTS_106}, "data")
    graph(home / "landmark203.onnx", (1, 3, 224, 224), {"landmarks": POINTS_203})
    if irises:
        graph(home / "blaze_face.onnx", (1, 128, 128, 3), blaze())
        more = {"Identity_2": np.zeros((1, 1)), "Identity": MESH, "Identity_1": np.ones((1, 1, 1, 1))}
        graph(home / "face_mesh.onnx", (1, 256, 256, 3), more)
    return root


def aux_models(root, folder="ditto/ditto_pytorch/aux_models"):
    """The files of ditto_pytorch/aux_models, with InsightFace's names, free sizes and outputs of another input size."""
    home = root / folder
    answers = {f"out{i}": value for i, value in enumerate(retina())}
    graph(home / "det_10g.onnx", (1, 3, "h", "w"), answers, "input.1", declared=DECLARED)
    graph(home / "2d106det.onnx", ("None", 3, 192, 192), {"fc1": POINTS_106}, "data")
    three = {"a": np.zeros((1, 214)), "b": np.zeros((1, 262)), "c": POINTS_203}
    graph(home / "landmark203.onnx", (1, 3, 224, 224), three)
    return root


def wanted(picture, n, irises=True):
    """What the pure functions make of the same answers."""
    box = detect.find_faces(picture, lambda _: retina())[0][0]
    points = landmarks.find_106(picture, box, lambda _: POINTS_106)
    c2o, opened, balls = [], [], []
    for _ in range(n):
        points = landmarks.find_203(picture, points, lambda _: POINTS_203)
        matrices = crop_matrices(face_box(points))
        c2o.append(matrices.c2o)
        if irises:
            answers = blaze()
            mesh = mesh478.find_mesh(
                crop_picture(picture, matrices),
                lambda _, a=answers: (a["regressors"], a["classificators"]),
                lambda _: MESH,
            )
            opened.append(eyes.eye_open(mesh))
            balls.append(eyes.eye_ball(mesh))
    return c2o, opened, balls


def fail():
    raise AssertionError("the light detector is not needed")


def test_the_onnx_set(tmp_path):
    tools = open_ditto_face_tools("exact", [onnx_set(tmp_path)])
    assert tools.name == "ditto-478-1"
    picture = pictures.presenter()
    made = register(3, lambda i: picture, tools, LARGEST)
    c2o, opened, balls = wanted(picture, 3)
    assert np.array_equal(made.c2o, c2o)
    assert np.array_equal(made.eye_open, opened)
    assert np.array_equal(made.eye_ball, balls)
    assert made.found.all()


def test_the_pytorch_set_with_the_packs_mesh(tmp_path):
    """Its 478 points cannot be read: eyes come of the 468 points, which see the face in the crop or not."""
    nets = open_exact([aux_models(tmp_path)], pictures.light_detector)
    assert nets.name == "ditto-468-1"
    picture = pictures.presenter()
    points = nets.landmarks(picture, nets.boxes(picture)[0])
    assert np.array_equal(
        points,
        landmarks.find_203(
            picture,
            landmarks.find_106(picture, nets.boxes(picture)[0], lambda _: POINTS_106),
            lambda _: POINTS_203,
        ),
    )
    mesh = nets.mesh(picture)
    assert np.array_equal(mesh, pictures.light_detector().detect(picture)[0].mesh)
    assert nets.mesh(pictures.gray(512, 512)) is None


def test_files_are_found_wherever_snapshots_lie(tmp_path):
    for folder in ONNX_HOMES:
        root = tmp_path / folder.replace("/", "-")
        for make in (onnx_set, aux_models):
            found = find_exact([make(root / make.__name__, folder)])
            assert {path.parent for path in found.values() if path} == {root / make.__name__ / folder}
            assert (found["mesh"] is None) == (make is aux_models)
            assert found["detector"].name == FILES["detector"].names[make is aux_models]


def test_half_of_the_iris_files_is_none(tmp_path):
    onnx_set(tmp_path)
    (tmp_path / "ditto/ditto_onnx/blaze_face.onnx").unlink()
    assert open_exact([tmp_path], pictures.light_detector).name == "ditto-468-1"


def test_missing_files_are_named(tmp_path):
    onnx_set(tmp_path)
    (tmp_path / "ditto/ditto_onnx/landmark106.onnx").unlink()
    (tmp_path / "ditto/ditto_onnx/landmark203.onnx").unlink()
    with pytest.raises(MissingModel) as raised:
        open_exact([tmp_path], fail)
    said = str(raised.value)
    assert "ditto/2d106det.onnx (5.03 MB), ditto/landmark203.onnx (115 MB)" in said
    assert str(tmp_path) in said
    assert "models download ditto-faces" in said
    assert said.endswith("or put ditto_onnx's landmark106.onnx, landmark203.onnx there")
    assert "insightface_det" not in said


WRONG = {
    "detector": ((1, 3, 640, 640), dict(zip(map(str, range(9)), retina(), strict=True))),
    "detector ": (SQUARE, dict(zip(map(str, range(8)), retina(), strict=False))),
    "detector  ": (SQUARE, dict(zip(map(str, range(9)), retina()[::-1], strict=True))),
    "landmarks106": ((1, 3, 112, 112), {"fc1": POINTS_106}),
    "landmarks203": ((1, 3, 224, 224), {"a": POINTS_203}),
    "landmarks203 ": ((1, 3, 224, 224), {"landmarks": POINTS_106}),
    "blaze": ((1, 128, 128, 3), {"regressors": np.zeros((1, 2304, 16)), "classificators": np.zeros((1, 2304, 1))}),
    "mesh": ((1, 192, 192, 3), {"Identity": MESH}),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_another_network_is_refused(kind, tmp_path):
    shape, outputs = WRONG[kind]
    path = graph(tmp_path / "net.onnx", shape, outputs)
    file = FILES[kind.strip()]
    with pytest.raises(ValueError, match=rf"net.onnx is another network: .*{file.names[0]} takes float"):
        OnnxNet(path, file)


def test_halves_damage_and_no_numbers(tmp_path):
    file, shape = FILES["landmarks106"], (1, 3, 192, 192)
    half = graph(tmp_path / "half.onnx", shape, {"fc1": POINTS_106}, dtype=np.float16)
    with pytest.raises(ValueError, match=r"half.onnx is another network: inputs input tensor\(float16\)"):
        OnnxNet(half, file)
    none = graph(tmp_path / "none.onnx", shape, {"fc1": POINTS_106 * np.nan})
    with pytest.raises(ValueError, match="values that are not finite"):
        OnnxNet(none, file)(np.zeros(shape, np.float32))
    (tmp_path / "junk.onnx").write_bytes(b"not found")
    for name, said in (("junk", "cannot be opened as ONNX"), ("absent", "models download ditto-faces")):
        with pytest.raises(ValueError, match=said):
            OnnxNet(tmp_path / f"{name}.onnx", file)
    good = graph(tmp_path / "good.onnx", shape, {"fc1": POINTS_106})
    with pytest.raises(ValueError, match="no provider MoonExecutionProvider"):
        OnnxNet(good, file, ["MoonExecutionProvider"])


def test_counts_of_another_input_size_are_told_when_they_come(tmp_path):
    """det_10g's declared counts are not held against it, what it answers is."""
    short = {f"out{i}": value[:-2] for i, value in enumerate(retina())}
    net = OnnxNet(graph(tmp_path / "det.onnx", SQUARE, short, declared=DECLARED), FILES["detector"])
    with pytest.raises(ValueError, match="the face detector gave"):
        detect.find_faces(pictures.presenter(), net)


def test_without_onnxruntime(monkeypatch, tmp_path):
    onnx_set(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="the exact face path needs 'onnxruntime'.*pip install onnxruntime"):
        open_ditto_face_tools("exact", [tmp_path])
