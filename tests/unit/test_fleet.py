"""Fleets: sources of a folder, the report, fifty portraits and a broken one, memory."""

import json

import cv2
import psutil
import pytest
from faces import gray, light_detector, portrait

from talkinghead import cli
from talkinghead.nodes.avatars.fleet import build_fleet, fleet_sources, split_names
from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.core.packet import list_packets
from talkinghead.nodes.musetalk.find_faces import FaceTools
from talkinghead.nodes.musetalk.make_avatar import BuildPlan, make_avatar


def builder(model, plan, tools, root):
    """Return what builds an item, as the command line and the node make it."""
    return lambda ctx, name, path: make_avatar(ctx, model, plan.open(path), plan, tools, root, name)


def write(path, picture):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, picture[..., ::-1])[1].tobytes())
    return path


def test_fifty_portraits_and_a_corrupt_one(tiny_model, tmp_path, capsys):
    folder = tmp_path / "fleet"
    for i in range(50):
        size = (200 + 4 * (i % 5), 200 + 6 * (i % 3))
        tint = (1 - i % 7 / 20, 1, 0.8 + i % 5 / 25)
        picture, _ = portrait(*size, face_width=60 + i % 4 * 10, tint=tint, mirror=i % 2 == 1)
        write(folder / f"p{i:02}{('.png', '.jpg', '.webp')[i % 3]}", picture)
    arguments = ["avatar", "fleet", str(folder), "--models", str(tmp_path / "models"), "--json"]
    assert cli.main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["summary"] == "50 of 50 ready (0 kept), 0 failed"
    (folder / "p50.png").write_bytes((folder / "p00.png").read_bytes()[:300])
    assert cli.main(arguments) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["summary"] == "50 of 51 ready (50 kept), 1 failed"
    [bad] = [i for i in facts["items"] if i["state"] == "failed"]
    assert (bad["id"], bad["source"]) == ("p50", "p50.png")
    assert "p50.png" in bad["error"]
    assert len(list_packets([tmp_path / "models/avatars"])) == 50


def test_memory_does_not_grow_with_the_items(tiny_model, tmp_path):
    # 4 MB of frames an item: 40 that are kept would be 160 MB.
    picture = portrait(1280, 1080, face_width=300)[0]
    sources = [(f"p{i}", write(tmp_path / "fleet" / f"p{i}.jpg", picture)) for i in range(48)]
    rss, process = [], psutil.Process()
    tools = FaceTools(light_detector())
    build = builder(tiny_model, BuildPlan(), tools, tmp_path / "avatars")
    build_fleet(RunContext(), sources, build, each=lambda item: rss.append(process.memory_info().rss))
    assert (rss[-1] - rss[7]) / 2**20 < 40


def test_sources_are_pictures_clips_and_folders_of_pictures(tmp_path):
    for name in ("b.png", "a.MP4", "shots/1.png", "shots/2.png"):
        write((tmp_path / name).with_suffix(".png"), gray(8, 8)).rename(tmp_path / name)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    assert {k: v.name for k, v in fleet_sources(tmp_path)} == {
        "a": "a.MP4",
        "b": "b.png",
        "shots": "shots",
    }
    assert [i for i, _ in fleet_sources(tmp_path, ["b"])] == ["b"]
    with pytest.raises(ValueError, match="has no z; it has a, b, shots"):
        fleet_sources(tmp_path, ["b", "z"])
    with pytest.raises(ValueError, match="no folder"):
        fleet_sources(tmp_path / "b.png")
    with pytest.raises(ValueError, match="holds neither pictures nor clips"):
        fleet_sources(tmp_path / "empty")


def test_two_sources_of_one_name_are_errors_of_their_own(tiny_model, tmp_path):
    for name in ("a.png", "A.jpg", "b.png"):
        write(tmp_path / "f" / name, gray(64, 64))
    plan = BuildPlan(boxes=((10, 10, 50, 50),))
    build = builder(tiny_model, plan, None, tmp_path / "avatars")
    report = build_fleet(RunContext(), fleet_sources(tmp_path / "f"), build)
    assert report.summary() == "1 of 3 ready (0 kept), 2 failed"
    assert all("another source would be avatar" in i.error for i in report.failed)
    assert split_names(" a, b ,") == ["a", "b"]
    with pytest.raises(ValueError, match="names no avatar"):
        split_names(" , ,")


def test_a_cancel_stops_after_the_item_that_is_done(tiny_model, tmp_path):
    sources = [(n, write(tmp_path / "f" / f"{n}.png", portrait(160, 160)[0])) for n in "abc"]
    done = []
    ctx = RunContext(is_cancelled=lambda: bool(done))
    plan = BuildPlan(boxes=((40, 40, 120, 120),))
    with pytest.raises(RunCancelled):
        build_fleet(ctx, sources, builder(tiny_model, plan, None, tmp_path / "avatars"), done.append)
    assert [p.name for p in list_packets([tmp_path / "avatars"])] == ["a"]
    assert [p.name for p in (tmp_path / "avatars").iterdir()] == ["a"]


def test_a_name_that_cannot_be_is_the_items_own_error(tiny_model, tmp_path):
    sources = [(n, write(tmp_path / "f" / f"{n}.png", gray(64, 64))) for n in ("demo", "ok")]
    plan = BuildPlan(boxes=((10, 10, 50, 50),))
    report = build_fleet(RunContext(), sources, builder(tiny_model, plan, None, tmp_path / "avatars"))
    assert report.summary() == "1 of 2 ready (0 kept), 1 failed"
    assert "that of a demo" in report.failed[0].error
    assert report.text().splitlines()[1].startswith("demo: failed in 0.0 s: avatar name 'demo'")
