"""`talkinghead wardrobe`: the crop out, a repainted one back in, hands and everything outside the paint mask untouched."""

import json
import shutil
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from talkinghead.cli import main
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.video_read import VideoStream
from talkinghead.nodes.wardrobe.sample import sample_files

CLIP, GARMENT, HANDS = map(str, sample_files("presenter"))
COMMON = [CLIP, "--mask", GARMENT, "--occluders", HANDS, "--grow", "4", "--json"]


def frames(path):
    with av.open(str(path)) as box:
        return np.stack([f.to_ndarray(format="rgb24") for f in box.decode(video=0)])


def write(path, pictures):
    """Write frames without loss."""
    with av.open(str(path), "w") as box:
        stream = box.add_stream("ffv1", rate=25)
        stream.height, stream.width, stream.pix_fmt = *pictures.shape[1:3], "bgr0"
        for picture in pictures:
            box.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        box.mux(stream.encode())
    return str(path)


def run(capsys, *options):
    code = main(["wardrobe", *options])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wardrobe")


def test_the_crop_and_its_mask(folder, capsys):
    out, mask = folder / "crop.mp4", folder / "paint.mkv"
    facts = run(capsys, "crop", *COMMON, "--frame-rule", "17k+5", "--out", str(out), "--mask-out", str(mask))
    assert facts["crop"] == "22 frames of 224x224, the first at -4,160"
    made, paint = frames(out), frames(mask)[..., 0] > 127
    assert made.shape == (22, 224, 224, 3)
    source, hands = frames(CLIP), frames(HANDS)[..., 0] > 127
    assert np.abs(made[:, :, 4:220].astype(int) - source[:, 160:]).mean() < 4  # the codec's own
    assert paint.mean() > 0.3
    assert not (paint[:, :, 4:220] & hands[:, 160:]).any()
    with av.open(str(out)) as box:
        assert box.streams.audio, "the clip's sound goes along"


@pytest.mark.parametrize("matte", ["hard", "colour_line"])
def test_a_repainted_crop_goes_back_and_is_measured(folder, capsys, matte):
    blue = np.full((22, 224, 224, 3), (30, 60, 150), np.uint8)
    made = folder / f"{matte}.mp4"
    options = ["--generated", write(folder / "blue.mkv", blue), "--matte", matte, "--seam", "none", "--loop"]
    found = run(capsys, "composite", *COMMON, *options, "--out", str(made))
    assert found["frames"] == 22
    assert found["outside_changed_px"] == 0
    assert (found["occluder_changed_px"] == 0) == (matte == "hard")  # colour_line cleans the hands' edge
    assert found["psnr_inside"] < 15
    assert found["loop_jump"] < 2
    shown = frames(made).astype(int)
    assert shown.shape == (22, 384, 216, 3)
    assert np.abs(shown[:, 345, 108] - (30, 60, 150)).max() < 12  # between the hands
    assert np.abs(shown[:, :150] - frames(CLIP)[:, :150].astype(int)).mean() < 3
    with av.open(str(made)) as box:
        assert box.streams.audio


@pytest.mark.parametrize(
    ("step", "options", "says"),
    [
        ("crop", ["--align", "31"], "an even number"),
        ("crop", ["--frame-rule", "4k+1"], "22"),
        ("crop", ["--frame-rule", "5k"], "'5k'"),
        ("crop", ["--mask", CLIP.replace("presenter.mp4", "no.mkv")], "no.mkv"),
        ("composite", ["--generated", CLIP], "216x384"),
        ("composite", ["--generated", GARMENT, "--seam", "fine"], "fine"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_leaves_no_file(tmp_path, capsys, step, options, says):
    out = tmp_path / "out.mp4"
    code = main(["wardrobe", step, *COMMON, *options, "--out", str(out)])
    assert code == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def files(tmp_path):
    """Copies of the clip and its masks, and a repainted crop."""
    made = {}
    for name, path in (("clip", CLIP), ("mask", GARMENT), ("occluders", HANDS)):
        made[name] = tmp_path / f"{name}{Path(path).suffix}"
        shutil.copy(path, made[name])
    made["generated"] = Path(write(tmp_path / "generated.mkv", np.full((22, 224, 224, 3), 60, np.uint8)))
    return made


def given(files, step):
    options = [step, str(files["clip"]), "--mask", str(files["mask"]), "--occluders", str(files["occluders"])]
    return [*options, "--generated", str(files["generated"])] if step == "composite" else options


@pytest.mark.parametrize("how", ["itself", "another way", "a link"])
@pytest.mark.parametrize(
    ("step", "name"),
    [
        *[("crop", name) for name in ("clip", "mask", "occluders")],
        *[("composite", name) for name in ("clip", "mask", "occluders", "generated")],
    ],
)  # fmt: skip
def test_an_output_is_never_an_input(files, tmp_path, capsys, step, name, how):
    """Refused before any work, whatever the file is called; for the mask's output too."""
    before = {path: path.read_bytes() for path in files.values()}
    target = files[name]
    if how == "another way":
        target = tmp_path / "elsewhere" / ".." / target.name
        target.parent.parent.mkdir()
    elif how == "a link":
        target = tmp_path / f"link{target.suffix}"
        target.symlink_to(files[name])
    wrong = [["--out", str(target)]]
    if step == "crop":
        wrong.append(["--out", str(tmp_path / "new.mp4"), "--mask-out", str(target)])
    for options in wrong:
        assert main(["wardrobe", *given(files, step), *options]) == 2
        error = capsys.readouterr().err
        assert f"is the file of {name if name == 'clip' else '--' + name}" in error
        assert options[-2] in error
    assert all(path.read_bytes() == bits for path, bits in before.items())
    assert not (tmp_path / "new.mp4").exists()


def test_both_outputs_are_two_files(files, tmp_path, capsys):
    out = str(tmp_path / "new.mkv")
    assert main(["wardrobe", *given(files, "crop"), "--out", out, "--mask-out", out]) == 2
    assert "--mask-out" in capsys.readouterr().err


def test_the_defaults_leave_no_ring_and_the_lossless_film_is_what_was_made(files, tmp_path, capsys):
    out = tmp_path / "new.mkv"
    blue = write(tmp_path / "blue.mkv", np.full((22, 224, 224, 3), (30, 60, 150), np.uint8))
    files["generated"] = Path(blue)
    found = run(capsys, *given(files, "composite"), "--codec", "ffv1", "--out", str(out), "--json")
    assert found["old_colour_ring"] < 0.01
    assert found["outside_changed_px"] == 0
    assert found["report"]["warnings"] == []
    read = VideoStream(CLIP).chunks(RunContext(), 8)  # the clip's YUV as our reader turns it into RGB
    source = np.concatenate([chunk.frames.numpy() for chunk in read])
    made, hands = frames(out), frames(HANDS)[..., 0] > 127
    core = np.stack([cv2.erode(h.astype(np.uint8), np.ones((11, 11))) > 0 for h in hands])
    np.testing.assert_array_equal(made[core], source[core])
    np.testing.assert_array_equal(made[:, :120], source[:, :120])
    near = np.stack([cv2.dilate(h.astype(np.uint8), np.ones((7, 7))) > 0 for h in hands]) & ~hands
    near &= frames(GARMENT)[..., 0] > 127
    red, blue = made[..., 0][near].astype(int), made[..., 2][near].astype(int)
    assert (red > blue + 15).mean() < 0.01
    bare = run(
        capsys, *given(files, "composite"), "--grow", "0", "--out", str(tmp_path / "bare.mp4"), "--json"
    )
    assert "grow 0 is less than feather 4" in bare["report"]["warnings"][0]
    assert bare["old_colour_ring"] > 0.1


def test_a_repainted_crop_that_does_not_fit_is_named(files, tmp_path, capsys):
    for shape in ((22, 112, 112), (20, 224, 224)):
        files["generated"] = Path(write(tmp_path / "wrong.mkv", np.zeros((*shape, 3), np.uint8)))
        assert main(["wardrobe", *given(files, "composite"), "--out", str(tmp_path / "new.mp4")]) == 2
        error = capsys.readouterr().err
        assert (
            f"wrong.mkv has {shape[0]} frames of {shape[2]}x{shape[1]}; the crop has 22 of 224x224" in error
        )
    assert (
        main(["wardrobe", *given(files, "crop"), "--codec", "ffv1", "--out", str(tmp_path / "new.mp4")]) == 2
    )
    assert "ffv1 writes a .mkv" in capsys.readouterr().err
