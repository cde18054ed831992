"""The command avatar as a user types it: build by detection, fleets, preflight, preview, clear."""

import json

import cv2
import numpy as np
import pytest
from faces import clip as face_clip
from faces import gray, portrait, two_people
from media import Clip

from talkinghead import cli


@pytest.fixture
def run(capsys, tmp_path, tiny_model):
    def call(*args, code=0):
        got = cli.main(["avatar", *map(str, args), "--models", str(tmp_path / "models")])
        out, err = capsys.readouterr()
        assert got == code, out + err
        return out, err

    return call


def write(path, picture):
    path.write_bytes(cv2.imencode(path.suffix, picture[..., ::-1])[1].tobytes())
    return path


@pytest.fixture
def face(tmp_path):
    picture, box = portrait(320, 240, face_width=90)
    return write(tmp_path / "Ána.png", picture), box


def test_build_finds_the_face(run, face, tmp_path):
    facts = json.loads(run("build", face[0], "--id", "ana", "--json")[0])
    assert (facts["state"], facts["frames"], facts["cycle"]) == ("built", 1, "still")
    box = [int(v) for v in facts["report"]["avatar"].split("face box (")[1].rstrip(")").split(",")]
    assert np.abs(np.array(box) - face[1]).max() < 25
    assert json.loads(run("build", face[0], "--id", "ana", "--json")[0])["state"] == "kept"
    assert json.loads(run("build", face[0], "--id", "ana", "--rebuild", "--json")[0])["state"] == "built"
    assert run("verify")[0] == "ana: ok\n"


def test_build_options_reach_the_packet(run, face, tmp_path):
    dials = ("--preset", "1.5", "--cheeks", "40,50", "--margin", "7", "--expand", "1.7", "--blur", "0.05")
    run("build", face[0], "--id", "a", *dials)
    manifest = json.loads((tmp_path / "models/avatars/a/packet.json").read_text("utf-8"))
    options = manifest["options"]
    assert (options["mask"], options["cheek_left"], options["cheek_right"]) == ("jaw", 40, 50)
    assert (options["extra_margin"], options["expand"], options["blur"]) == (7, 1.7, 0.05)
    assert "--cheeks '90' is not L,R" in run("build", face[0], "--cheeks", "90", code=2)[1]
    assert "mask 'nose' is unknown" in run("build", face[0], "--mask", "nose", code=2)[1]


def test_a_clip_with_a_gap_keeps_every_frame_and_says_which_have_no_face(run, tmp_path):
    frames, _ = face_clip(12, 320, 240, 90, faceless=range(4, 7))
    folder = tmp_path / "shots"
    folder.mkdir()
    for i, frame in enumerate(frames):
        write(folder / f"{i}.png", frame)
    facts = json.loads(run("build", folder, "--id", "shots", "--json")[0])
    assert facts["frames"] == 12
    assert any("no face in frames 4-6: shown as they are" in w for w in facts["report"]["warnings"])


def test_which_of_two_people(run, tmp_path):
    picture, (left, right) = two_people()
    path = write(tmp_path / "two.png", picture)
    for choice, expected in (("0", left), ("1", right), (f"{right[0]:.0f},{right[1]:.0f}", right)):
        facts = json.loads(run("build", path, "--face", choice, "--json")[0])
        box = [int(v) for v in facts["report"]["avatar"].split("face box (")[1].rstrip(")").split(",")]
        assert np.abs(np.array(box) - expected).max() < 25
    _, err = run("build", path, "--face", "2", code=2)
    assert "face 2 was asked for and 2 faces were found" in err


def test_a_fleet_goes_on_past_a_corrupt_file_and_resumes(run, tmp_path):
    folder = tmp_path / "fleet ñ"
    folder.mkdir()
    for i in range(3):
        write(folder / f"p{i}.png", portrait(200, 200, face_width=70, tint=(1 - 0.1 * i, 1, 1))[0])
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n but no more")
    (folder / "notes.txt").write_text("not a picture")
    write(folder / "empty.jpg", gray(100, 100))
    out, _ = run("fleet", folder, "--report", tmp_path / "report.json", code=1)
    assert out.splitlines()[-1] == "3 of 5 ready (0 kept), 2 failed"
    items = {i["id"]: i for i in json.loads((tmp_path / "report.json").read_text("utf-8"))["items"]}
    assert "broken.png" in items["broken"]["error"]
    assert "no face was found" in items["empty"]["error"]
    (folder / "broken.png").unlink()
    (folder / "empty.jpg").unlink()
    facts = json.loads(run("fleet", folder, "--json")[0])
    assert facts["summary"] == "3 of 3 ready (3 kept), 0 failed"
    facts = json.loads(run("fleet", folder, "--specific", "p1, p2", "--rebuild", "--json")[0])
    assert [(i["id"], i["state"]) for i in facts["items"]] == [("p1", "built"), ("p2", "built")]
    assert "has no p9; it has p0, p1, p2" in run("fleet", folder, "--specific", "p9", code=2)[1]


def test_preflight_says_what_would_happen_and_builds_nothing(run, tmp_path):
    path = Clip(width=320, height=240, n_frames=12).write(tmp_path / "bars.mp4")
    out, _ = run("check", path, code=1)
    assert "verdict: cannot be built" in out
    assert "clip: 320x240, 25 fps, 0.48 s, h264, no sound" in out
    picture = write(tmp_path / "face.png", portrait(320, 240, face_width=90)[0])
    out, _ = run("check", picture, "--out", tmp_path / "seen.png")
    assert out.startswith("verdict: ready\n")
    assert "face: in 100% of 1 frames looked at" in out
    assert cv2.imread(str(tmp_path / "seen.png")).shape == (240, 320, 3)
    assert not (tmp_path / "models").exists()


def test_preview_draws_into_a_copy(run, face, tmp_path):
    run("build", face[0], "--id", "ana")
    run("preview", "ana", "--out", tmp_path / "seen.png")
    seen = cv2.imread(str(tmp_path / "seen.png"))[..., ::-1]
    own = cv2.imdecode(np.fromfile(face[0], np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert 0 < (seen != own).any(2).mean() < 0.5
    assert "must end in .png" in run("preview", "ana", "--out", tmp_path / "seen.jpg", code=2)[1]
    assert (
        "frames 3..3 are not in the avatar; it has 0..0"
        in run("preview", "ana", "--frame", 3, "--out", tmp_path / "x.png", code=2)[1]
    )
    run("verify", "ana")


def test_clear_removes_what_is_named(run, face, tmp_path):
    run("build", face[0])
    run("build", face[0], "--id", "ana")
    run("build", face[0], "--id", "eva")
    avatars = tmp_path / "models/avatars"
    run("clear", "ana")
    assert sorted(p.name.split("-")[0] for p in avatars.iterdir()) == ["auto", "eva"]
    run("clear", "--auto")
    assert [p.name for p in avatars.iterdir()] == ["eva"]
    assert "no avatar 'ana'" in run("clear", "ana", code=2)[1]
    run("clear", "--all")
    assert list(avatars.iterdir()) == []


def test_listing_says_size_and_thumbnail(run, face):
    run("build", face[0], "--id", "ana")
    [row] = json.loads(run("list", "--json")[0])["avatars"]
    assert (row["id"], row["engine"], row["frames"], row["size"]) == ("ana", "musetalk", 1, "320x240")
    assert row["megabytes"] > 0.2
    assert row["thumbnail"].endswith("preview.jpg")


def test_a_check_refuses_what_a_build_refuses(run, face):
    for arguments, message in (
        (("--box", "0,0,3,3"), "face box (0, 0, 3, 3) leaves 3x3 pixels"),
        (("--mask", "jaw", "--box", "90,60,200,190"), "mask 'jaw' needs a parsed face"),
        (("--cycle", "zz"), "cycle 'zz' is unknown"),
        (("--face", "9" * 400 + ",3"), "is not a choice"),
    ):
        for action in ("check", "build"):
            assert message in run(action, face[0], *arguments, code=2)[1]


def test_clear_auto_takes_only_what_was_built_just_in_time(run, face, tmp_path):
    run("build", face[0])
    for name in ("auto-x", "automatic"):
        run("build", face[0], "--id", "t")
        (tmp_path / "models/avatars/t").rename(tmp_path / "models/avatars" / name)
    run("clear", "--auto")
    assert sorted(p.name for p in (tmp_path / "models/avatars").iterdir()) == ["auto-x", "automatic"]


def test_a_fleets_report_is_checked_before_the_work(run, face, tmp_path):
    for report in (tmp_path / "no" / "r.json", tmp_path):
        assert (
            "must be a file in a folder that is there"
            in run("fleet", face[0].parent, "--report", report, code=2)[1]
        )
    assert "names no avatar" in run("fleet", face[0].parent, "--specific", " , ", code=2)[1]
    assert not (tmp_path / "models").exists()


def test_clear_goes_on_past_what_it_cannot_remove(run, face, tmp_path, monkeypatch):
    from talkinghead.nodes.core import packet

    run("build", face[0], "--id", "a")
    run("build", face[0], "--id", "b")
    original = packet.delete_packet

    def refuse_a(path):
        if path.name == "a":
            raise PermissionError(f"{path} is in use")
        original(path)

    monkeypatch.setattr(packet, "delete_packet", refuse_a)
    facts = json.loads(run("clear", "--all", "--json", code=1)[0])
    assert facts["removed"] == ["b"]
    assert "in use" in facts["not removed"][0]


def test_build_options_with_a_built_avatar_are_refused(capsys, tmp_path, tiny_model):
    arguments = [
        "render",
        "--avatar",
        "demo",
        "--text",
        "x",
        "--out",
        str(tmp_path / "v.mp4"),
        "--mask",
        "jaw",
        "--face",
        "7",
    ]
    assert cli.main(arguments) == 2
    assert "--face, --mask goes with a picture or clip; 'demo' is no file" in capsys.readouterr().err
