"""`talkinghead wardrobe`: the crop out, a repainted one back in, hands and everything outside the paint mask untouched."""

import json

import av
import numpy as np
import pytest

from talkinghead.cli import main
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
