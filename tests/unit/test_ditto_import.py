"""Legacy Ditto avatars become packets: grids fitted, lists folded, what does not fit is named, hostile files refused."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from legacy_ditto import HEIGHT, VOLUME, WIDTH, Made, write_lean, write_six

from talkinghead import cli
from talkinghead.nodes.avatars.take_over import take_over
from talkinghead.nodes.core.frames import RunCancelled, RunContext
from talkinghead.nodes.core.packet import PacketError, open_packet, verify_packet
from talkinghead.nodes.core.unpickle import UnsafePickle
from talkinghead.nodes.ditto.bake import OFFICIAL_EXTRACTORS
from talkinghead.nodes.ditto.legacy_import import import_legacy_ditto
from talkinghead.nodes.ditto.legacy_read import fit_grid

INSIDE = np.array([[0, 0, 1], [512, 0, 1], [512, 512, 1], [0, 512, 1]]).T


def taken(folder, tmp_path, **more):
    return import_legacy_ditto(folder, tmp_path / "root", "anna", **more)


def corners_off(found, wanted):
    """Pixels of the frame that the corners of a crop are off."""
    return np.abs((found - wanted) @ INSIDE).max()


@pytest.mark.parametrize("write", [write_six, write_lean])
def test_both_forms_become_packets(tmp_path, write):
    made = Made(4)
    done = taken(write(tmp_path / "old ñ", made), tmp_path)
    info = verify_packet(done.packet.path).info
    assert (info.engine, info.n_frames, info.size, info.cycle, info.fps) == (
        "ditto", 4, (WIDTH, HEIGHT), "loop", 25,
    )  # fmt: skip
    assert info.model == OFFICIAL_EXTRACTORS
    assert info.source["form"] == ("ditto" if write is write_six else "ditto lean")
    with done.packet.open() as reader:
        for i in range(4):
            assert np.array_equal(reader.frame(i).numpy(), made.frames[i])
            assert corners_off(reader.c2o[i].numpy(), made.c2o[i]) < 0.02
        assert torch.equal(reader.volumes, made.volumes)
        assert all(torch.equal(rows, made.pose[name]) for name, rows in reader.pose.items())
        assert reader.found.all()
        assert (reader.eye_open == 0.9).all()
    assert done.notes == ("it does not say how the eyes are: they count as open, looking ahead",)


def test_a_matrix_says_what_grid_sample_does_with_its_grid():
    y, x = np.mgrid[:512, :512].astype(np.float32)
    places = torch.from_numpy(np.stack([x, y]))[None]  # a face whose pixels say where they lie
    for grid in Made(2).grids():
        drawn = F.grid_sample(places, grid[None].float(), align_corners=False)[0].permute(1, 2, 0).numpy()
        row, column = np.nonzero((grid.abs() < 0.95).all(2).numpy())
        o2c = np.linalg.inv(fit_grid(grid, "g").astype(np.float64))
        at = np.stack([column, row, np.ones(len(row))], 1) @ o2c[:2].T
        off = at - drawn[row, column]
        assert len(off) > 2000
        assert np.abs(off).max() < 0.3  # fp16 of the grid
        assert np.abs(off.mean(0)).max() < 0.02  # half a pixel would be the other convention


def test_a_grid_cut_off_outside_the_face_is_fitted_by_its_inside():
    made = Made(1)
    grid = made.grids()[0].clamp(-1.05, 1.05)
    grid[0, 0] = float("nan")
    assert corners_off(fit_grid(grid, "g"), made.c2o[0]) < 0.05
    grid[60:64, 60:64] = 0.3  # a few samples that are wrong
    assert corners_off(fit_grid(grid, "g"), made.c2o[0]) < 0.1


def test_a_grid_that_is_no_affine_map_is_refused(tmp_path):
    grids = Made(3).grids()
    grids[1] = grids[1] + 0.2 * torch.sin(6 * grids[1])
    with pytest.raises(PacketError, match="grids.pt, entry 1: .*% of its samples are more than 0.5 of 512"):
        taken(write_six(tmp_path / "old", Made(3), grids=grids), tmp_path)
    assert not (tmp_path / "root").exists()


def test_an_entry_whose_face_left_the_frame_stays_in_its_place(tmp_path):
    made = Made(4)
    grids = made.grids()
    grids[2] += 9
    done = taken(write_six(tmp_path / "old", made, grids=grids, masks=torch.zeros(4, 1, 1, 1)), tmp_path)
    with done.packet.open() as reader:
        assert reader.found.tolist() == [True, True, False, True]
        assert torch.equal(reader.c2o[2], reader.c2o[1])
    assert "entries 2 do not have their face" in " ".join(done.notes)
    with pytest.raises(PacketError, match="no entry has its face in its frame"):
        taken(write_six(tmp_path / "gone", made, grids=grids[2:3].repeat(4, 1, 1, 1)), tmp_path)


def test_masks_that_are_not_ours_are_said(tmp_path):
    made = Made(2)
    square = (made.masks() > 0.01).half()
    notes = " ".join(taken(write_six(tmp_path / "old", made, masks=square), tmp_path).notes)
    assert "its masks differ from ours by 0.07 on average" in notes


@pytest.mark.parametrize(
    ("order", "n", "cycle"),
    [([0] * 25, 1, "still"), ([0, 1, 2, 2, 1, 0], 3, "pingpong"), ([0, 1, 2, 0], 4, "loop")],
)
def test_lists_that_repeat_are_stored_once(tmp_path, order, n, cycle):
    made = Made(3)
    done = taken(write_lean(tmp_path / "old", made.listed(order)), tmp_path)
    assert (done.packet.info.n_frames, done.packet.info.cycle) == (n, cycle)
    with done.packet.open() as reader:
        assert np.array_equal(reader.frame(n - 1).numpy(), made.frames[order[n - 1]])


@pytest.mark.parametrize("stacked", [False, True])
def test_other_layouts_of_x_s_info(tmp_path, stacked):
    made = Made(3)
    rows = {**made.pose, "kp": made.pose["kp"].reshape(3, 5, 3), "eye_open": torch.rand(3, 2)}
    rows |= {"eye_ball": torch.rand(3, 6), "M_c2o": torch.from_numpy(made.c2o[:, :2])}
    info = {k: t[:, None] if k not in ("M_c2o", "kp") else t for k, t in rows.items()}
    if not stacked:
        info = [{k: t[i] for k, t in info.items()} for i in range(3)]
    done = taken(write_lean(tmp_path / "old", made, x_s_info=info), tmp_path)
    with done.packet.open() as reader:
        assert torch.equal(reader.pose["kp"], made.pose["kp"])
        assert torch.equal(reader.eye_ball, rows["eye_ball"])
        assert np.array_equal(reader.c2o.numpy(), made.c2o)
    assert done.notes == ()


def change(name, tensor):
    return {"x_s_info": {**Made(3).pose, "M_c2o": torch.from_numpy(Made(3).c2o), name: tensor}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"f_s": torch.zeros(2, *VOLUME)}, "entries differ or are 0 .frames.pt 3, f_s.pt 2"),
        (
            {"f_s": torch.zeros(3, 4, 16, 16)},
            r"f_s.pt: must be a float tensor \(N,C,D,h,w\), is torch.float32",
        ),
        ({"f_s": torch.full((3, *VOLUME), 1e6)}, "f_s.pt: entry 0 is not finite in fp16"),
        ({"f_s": {"a": 1}}, "f_s.pt: must be a float tensor .*, is dict"),
        ({"frames": torch.zeros(3, 3, HEIGHT, WIDTH)}, r"frames.pt: must be uint8 \(N,3,H,W\)"),
        ({"x_s_info": 7}, "x_s_info.pt: must be a dict of tensors or a list of such, is int"),
        ({"x_s_info": [{"kp": torch.zeros(1)}, {"exp": torch.zeros(1)}]}, "do not have the same names"),
        ({"x_s_info": Made(3).pose}, "x_s_info.pt has no M_c2o, and old has no grids.pt"),
        (change("pitch", torch.zeros(3, 1)), "pitch must have 66 numbers a frame, .*angles in degrees"),
        (change("t", torch.full((3, 3), float("nan"))), "x_s_info.pt: t of entry 0 is not finite"),
        (change("kp", torch.zeros(3, 63)), r"'kp' is F32 \[3, 63\], must be F32 \[3, 15\]"),
        (change("exp", torch.zeros(3, 15, dtype=torch.int64)), r"exp must be floats \(N, ...\)"),
        (change("M_c2o", torch.zeros(3, 4)), r"M_c2o must be floats \(N,3,3\)"),
        (change("M_c2o", torch.zeros(3, 3, 3)), "no entry has its face in its frame"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
    with pytest.raises(PacketError, match=message):
        taken(write_lean(tmp_path / "old", Made(3), **changes), tmp_path)
    assert not (tmp_path / "root" / "anna").exists()
    assert not list(tmp_path.glob("root/.*"))


def test_a_tensor_of_nothing_that_claims_terabytes_is_refused(tmp_path):
    huge = torch.zeros(1).expand(3, 4096, 4096, 64, 64)
    with pytest.raises(PacketError, match="claims"):
        taken(write_lean(tmp_path / "old", Made(3), f_s=huge), tmp_path)
    info = {**Made(3).pose, "exp": torch.zeros(1).expand(3, 1 << 40)}
    with pytest.raises(PacketError, match="claims"):
        taken(write_lean(tmp_path / "other", Made(3), x_s_info=info), tmp_path)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("file", ["x_s_info.pt", "f_s.pt", "frames.pt", "grids.pt", "masks.pt"])
def test_a_file_that_runs_code_is_refused_with_its_name(tmp_path, file):
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch '{tmp_path / 'ran'}'",)

    folder = write_six(tmp_path / "old", Made(2))
    (folder / file).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UnsafePickle, match=f"{file}.*system"):
        taken(folder, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_cut_file_is_named(tmp_path):
    folder = write_six(tmp_path / "old", Made(2))
    whole = (folder / "f_s.pt").read_bytes()
    (folder / "f_s.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PacketError, match="f_s.pt is damaged"):
        taken(folder, tmp_path)
    (folder / "f_s.pt").unlink()
    with pytest.raises(PacketError, match="for the form 'ditto.*' it lacks f_s.pt"):
        take_over(folder, tmp_path / "root", "anna")


def test_a_cancel_leaves_nothing(tmp_path):
    asked = []
    ctx = RunContext(is_cancelled=lambda: bool(asked.append(1)) or len(asked) > 2)
    with pytest.raises(RunCancelled):
        taken(write_six(tmp_path / "old", Made(4)), tmp_path, ctx=ctx)
    assert list((tmp_path / "root").iterdir()) == []


def test_from_the_command_line(tmp_path, capsys):
    folder = write_six(tmp_path / "old", Made(3))
    common = ["--models", str(tmp_path / "models")]
    arguments = ["avatar", "import", str(folder), "--id", "anna", "--fps", "30", "--json", *common]
    assert cli.main(arguments) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["engine"], facts["frames"], facts["fps"]) == ("ditto", 3, "30")
    assert open_packet(tmp_path / "models/avatars/anna").info.engine == "ditto"
    assert cli.main([*arguments, "--frames", str(folder / "frames.pt")]) == 2
    assert "Ditto avatar with its own pictures" in capsys.readouterr().err
