"""`talkinghead avatar import`: legacy avatars of every form become packets, hostile ones are refused."""

import json
import os
import pickle

import cv2
import pytest
from legacy_packets import WRITERS, Made, write_four, write_seven

from talkinghead import cli
from talkinghead.nodes.core.packet import open_packet
from talkinghead.nodes.musetalk.config import OFFICIAL
from talkinghead.nodes.musetalk.handle import MuseTalkModel
from talkinghead.nodes.musetalk.render import check_avatar


@pytest.fixture
def run(capsys, tmp_path):
    def call(*args, code=0):
        got = cli.main(["avatar", "import", *map(str, args), "--models", str(tmp_path / "models")])
        out, err = capsys.readouterr()
        assert got == code, out + err
        return out, err

    return call


def pictures(folder, made):
    folder.mkdir()
    for i, frame in enumerate(made.frames):
        (folder / f"{i}.png").write_bytes(cv2.imencode(".png", frame[..., ::-1])[1].tobytes())
    return folder


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_from_the_command_line(run, tmp_path, form):
    made = Made(3)
    folder = WRITERS[form](tmp_path / "old ñ", made)
    extra = ("--frames", pictures(tmp_path / "frames", made)) if form == "four files" else ()
    facts = json.loads(run(folder, "--id", "anna", *extra, "--fps", "30", "--json")[0])
    assert (facts["id"], facts["frames"], facts["fps"], facts["size"]) == ("anna", 3, "30", "96x80")
    with open_packet(tmp_path / "models/avatars/anna").open() as reader:
        assert (reader.frame(2).numpy() == made.frames[2]).all()


def test_four_files_alone_say_what_is_missing(run, tmp_path):
    folder = write_four(tmp_path / "old", Made(2))
    assert "clip.mp4" in run(folder, "--id", "anna", code=2)[1]
    assert not (tmp_path / "models/avatars/anna").exists()


def test_a_malicious_pickle_is_refused_with_its_name(run, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch '{tmp_path / 'ran'}'",)

    folder = write_seven(tmp_path / "old", Made(2))
    (folder / "coords.pkl").write_bytes(pickle.dumps(Bomb()))
    assert f"{os.system.__module__}.system" in run(folder, "--id", "anna", code=2)[1]
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "models/avatars").glob("*")) == []


def test_a_demos_name_is_refused(run, tmp_path):
    assert "that of a demo" in run(write_seven(tmp_path / "old", Made(2)), "--id", "demo", code=2)[1]


def test_an_import_fits_every_official_model_but_not_the_embedded_one(run, tmp_path, monkeypatch):
    run(write_seven(tmp_path / "old", Made(2)), "--id", "anna")
    avatar = open_packet(tmp_path / "models/avatars/anna")
    with pytest.raises(ValueError, match="'anna' was built with weights official-vae"):
        check_avatar(MuseTalkModel(), avatar)
    monkeypatch.setattr(MuseTalkModel, "version", "1.5")
    with pytest.raises(ValueError, match="has latents of 8x32x32, the model takes 8x16x16"):
        check_avatar(MuseTalkModel(), avatar)
    monkeypatch.setattr(MuseTalkModel, "config", OFFICIAL)
    check_avatar(MuseTalkModel(), avatar)
