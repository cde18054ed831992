"""`talkinghead parity`: whole and partial directories, damage, other inputs, half precision."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch
from parity.recipe import GOLDEN
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from talkinghead.nodes.core.parity_measure import NOT_RUN, OK, Tolerance, close, distance, exact, some
from talkinghead.nodes.musetalk.parity import run_parity

# The two networks of full size cost minutes and gigabytes; test_musetalk_unet and _vae run them.
FULL = {"unet_full.safetensors", "vae_full.safetensors", "manifest_unet.json", "manifest_vae.json"}
S3FD = {"manifest_s3fd", "s3fd_forward", "s3fd_post", "s3fd_post_in"}
FAMILY = {"dwpose_cases": "dwpose"}  # a golden whose lines carry another name


def subset(folder, *names: str):
    """Copies of golden files that may be changed."""
    for name in names:
        shutil.copyfile(GOLDEN / name, folder / name)
    return folder


def run(directory, **options):
    lines = []
    summary = run_parity(directory, out=lines.append, **options)
    assert len(lines) == len(summary.results) + 1
    assert lines[-1] == str(summary)
    return summary, lines


def named(summary, status: str) -> set[str]:
    return {result.name for result in summary.results if result.status == status}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("goldens")
    subset(folder, *(path.name for path in GOLDEN.iterdir() if path.name not in FULL))
    return run(folder)


def test_every_golden_passes(whole):
    summary, lines = whole
    assert summary.failed == 0, "\n".join(line for line in lines if "FAIL" in line)
    assert summary.passed >= 45
    assert re.fullmatch(r"\d+ passed, 0 failed, \d+ not run", lines[-1])


def test_every_file_has_a_line(whole):
    said = {result.name.partition(".")[0] for result in whole[0].results}
    stems = {path.stem for path in GOLDEN.iterdir() if path.suffix != ".md" and path.name not in FULL}
    assert {FAMILY.get(stem, stem) for stem in stems} == said


def test_what_is_not_run_says_why(whole):
    skipped = {r.name: r.note for r in whole[0].results if r.status == NOT_RUN}
    assert S3FD <= set(skipped)
    assert set(skipped) - S3FD == {
        "manifest_dwpose",
        "dwpose.network",
        "avatar_material.ffmpeg",
    }
    assert all(skipped.values())
    assert "ONNX" in skipped["dwpose.network"]


def test_a_line_has_name_error_cosine_tolerance_and_verdict(whole):
    line = next(text for text in whole[1] if text.startswith("unet_reduced "))
    found = re.fullmatch(r"unet_reduced +max (\S+) +cosine (\S+) +tolerance 5e-05 +ok", line)
    assert 0 < float(found[1]) <= 5e-5
    assert float(found[2]) > 0.999999


def change_json(path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_npz(path, change) -> None:
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)


def change_tensors(path, change) -> None:
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    change(tensors)
    save_file(tensors, path, metadata=about)


def add(name, amount, at=0):
    def change(values):
        flat = values[name].reshape(-1)
        flat[at] += amount

    return change


def a_box(content) -> None:
    content["cases"][3]["bbox_v15_margin10"][3] += 1


def a_start(content) -> None:
    content["table"][7]["start"][4] -= 1


def an_exit(content) -> None:
    next(c for c in content["table"] if c["result"] == "exit")["exit_at_frame"] += 1


def a_clamp(content) -> None:
    content["cases"][9]["last"][0][9] += 1


def a_checksum(content) -> None:
    content["cases"][20]["mask_realtime_crc32"] ^= 1


def an_order(content) -> None:
    content["frame_source_index"][1:3] = [2, 1]


def a_shape(content) -> None:
    content["keys"][6]["shape"][0] += 1


def a_sum(content) -> None:
    content["keys"][6]["recipe_abs_sum"] *= 1.0001


DAMAGE = {
    "box": ("bbox_cases.json", change_json, a_box, "bbox_cases"),
    "window": ("audio_windows.json", change_json, a_start, "audio_windows"),
    "exit": ("audio_windows.json", change_json, an_exit, "audio_windows"),
    "v1 window": ("audio_windows_v1_original.json", change_json, a_clamp, "audio_windows_v1_original"),
    "checksum": ("blend_cases.json", change_json, a_checksum, "blend_cases"),
    "order": ("avatar_material.json", change_json, an_order, "avatar_material"),
    "mask": ("face_parsing.npz", change_npz, add("parse_blocks_jaw_80_80", 1, 99), "face_parsing"),
    "crop": ("crop_lanczos4.npz", change_npz, add("up", 1, 500), "crop_lanczos4"),
    "pixel": ("blend_arrays.npz", change_npz, add("left_jaw__offline_region", 1, 77), "blend_arrays"),
    "shape": ("manifest_bisenet.json", change_json, a_shape, "manifest_bisenet"),
    "weight": ("manifest_bisenet.json", change_json, a_sum, "manifest_bisenet.recipe_sum"),
    "output": ("unet_reduced_trace.safetensors", change_tensors, add("out", 1e-3, 9), "unet_reduced_trace"),
    "inside": (
        "vae_reduced_trace.safetensors",
        change_tensors,
        add("act.encoder.mid_block", 1e-3, 9),
        "vae_reduced_trace",
    ),
    "not finite": (
        "unet_reduced_trace.safetensors",
        change_tensors,
        add("out", float("nan")),
        "unet_reduced_trace",
    ),
}
BESIDE = {
    "blend_cases.json": ["face_parsing.npz"],
    "avatar_material.json": ["face_parsing.npz"],
    "crop_lanczos4.npz": ["blend_cases.json"],
    "blend_arrays.npz": ["blend_cases.json", "face_parsing.npz"],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_one_wrong_value_fails_under_its_name(kind, tmp_path):
    file, rewrite, change, name = DAMAGE[kind]
    subset(tmp_path, file, *BESIDE.get(file, []))
    rewrite(tmp_path / file, change)
    summary, lines = run(tmp_path)
    failed = [line for line in lines if "FAIL" in line]
    assert summary.failed >= 1
    assert any(line.startswith(name + " ") for line in failed), lines
    assert {line.split(".")[0].split()[0] for line in failed} <= {
        name.partition(".")[0],
        file.partition(".")[0],
    }
    assert f"{summary.failed} failed" in lines[-1]


def test_a_file_that_cannot_be_read_fails_and_the_rest_runs(tmp_path):
    subset(tmp_path, "bbox_cases.json", "unet_reduced_trace.safetensors")
    whole_file = (tmp_path / "unet_reduced_trace.safetensors").read_bytes()
    (tmp_path / "unet_reduced_trace.safetensors").write_bytes(whole_file[:1000])
    summary, lines = run(tmp_path)
    assert named(summary, OK) == {"bbox_cases"}
    assert summary.failed == 1
    assert any(re.search(r"unet_reduced_trace .*FAIL .*Error: ", line) for line in lines)


@pytest.mark.parametrize("file", ["audio_windows.json", "bbox_cases.json", "unet_reduced_trace.safetensors"])
def test_one_file_alone(file, tmp_path):
    summary, _ = run(subset(tmp_path, file))
    assert [result.status for result in summary.results] == [OK]


def test_what_a_golden_needs_beside_it_is_named(tmp_path):
    subset(tmp_path, "blend_arrays.npz", "dwpose_cases.json", "e2e_reduced.safetensors")
    summary, _ = run(tmp_path)
    notes = {result.name: result.note for result in summary.results}
    assert (summary.passed, summary.failed) == (0, 0)
    assert notes["blend_arrays"] == "it needs blend_cases.json and face_parsing.npz beside it"
    assert "dwpose.safetensors" in notes["dwpose_cases"]
    assert "audio_whisper.safetensors" in notes["e2e_reduced"]


def test_a_file_of_another_name_is_listed(tmp_path):
    subset(tmp_path, "bbox_cases.json")
    (tmp_path / "surprise.npz").write_bytes(b"")
    summary, _ = run(tmp_path)
    assert named(summary, NOT_RUN) == {"surprise"}
    assert (summary.passed, summary.failed) == (1, 0)


def test_inputs_come_from_the_files(tmp_path, unet_reduced):
    """Another input with its own output passes; with the old output it does not."""
    file = subset(tmp_path, "unet_reduced_trace.safetensors") / "unet_reduced_trace.safetensors"
    other = torch.randn(1, 8, 16, 16, generator=torch.Generator().manual_seed(3))
    change_tensors(file, lambda tensors: tensors.update(latent_in=other))
    assert run(tmp_path)[0].failed == 1

    from talkinghead.nodes.musetalk.whisper import positional_encoding

    def own_output(tensors) -> None:
        for key in [key for key in tensors if key.startswith("act.")]:
            del tensors[key]
        with torch.no_grad():
            tensors["out"] = unet_reduced(other, tensors["audio_in"] + positional_encoding(50, 384))

    change_tensors(file, own_output)
    assert run(tmp_path)[0].failed == 0


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_half_precision_within_its_bounds(dtype, tmp_path):
    subset(tmp_path, "unet_reduced_trace.safetensors", "vae_reduced_trace.safetensors")
    summary, lines = run(tmp_path, dtype=dtype)
    assert named(summary, OK) == {"unet_reduced_trace", "vae_reduced_trace"}, lines
    assert named(summary, NOT_RUN) == {"unet_reduced_trace.act", "vae_reduced_trace.act"}
    assert all(result.error > 1e-4 for result in summary.results if result.status == OK)  # it was not float32


def test_half_precision_has_bounds(tmp_path):
    file = subset(tmp_path, "unet_reduced_trace.safetensors") / "unet_reduced_trace.safetensors"
    change_tensors(file, lambda tensors: tensors["out"].add_(6e-3))  # within the largest, not within the rms
    assert run(tmp_path, dtype="fp16")[0].failed == 1


def test_settings_of_torch_stay(tmp_path):
    before = torch.backends.cudnn.allow_tf32, torch.is_grad_enabled()
    run(subset(tmp_path, "bbox_cases.json"))
    assert (torch.backends.cudnn.allow_tf32, torch.is_grad_enabled()) == before


def test_nothing_to_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no golden file"):
        run_parity(tmp_path)
    with pytest.raises(ValueError, match="is not a directory"):
        run_parity(tmp_path / "missing")
    with pytest.raises(ValueError, match="'int8' is unknown; use one of fp32, fp16, bf16"):
        run_parity(GOLDEN, dtype="int8")


@pytest.mark.parametrize("file", ["s3fd_post.json", "manifest_dwpose.json"])
def test_goldens_that_are_never_run_are_listed_alone(tmp_path, file):
    summary, lines = run(subset(tmp_path, file))
    assert lines[-1] == "0 passed, 0 failed, 1 not run"
    assert lines[0].startswith(file.removesuffix(".json"))
    assert "not run: " in lines[0]
    assert summary.failed == 0


def _empty(*path):
    def change(content):
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = []

    return change


def _without_masks(arrays):
    for name in [name for name in arrays if name.startswith("parse_")]:
        del arrays[name]


@pytest.mark.parametrize(
    ("file", "beside", "change", "said"),
    [
        ("bbox_cases.json", (), _empty("cases"), "cases is empty"),
        ("bbox_cases.json", (), _empty("sequence", "face68"), "face68 of sequence is empty"),
        ("blend_cases.json", ("face_parsing.npz",), _empty("cases"), "cases is empty"),
        ("audio_windows.json", (), _empty("table"), "table is empty"),
        ("audio_windows_v1_original.json", (), _empty("cases"), "nothing to compare"),
        ("avatar_material.json", ("face_parsing.npz",), _empty("coords_pkl"), "coords_pkl is empty"),
        ("crop_lanczos4.npz", ("blend_cases.json", "face_parsing.npz"), lambda a: a.clear(), None),
        ("blend_arrays.npz", ("blend_cases.json", "face_parsing.npz"), lambda a: a.clear(), "nothing to"),
        ("face_parsing.npz", (), _without_masks, r"parse_\* arrays is empty"),
        ("dwpose_cases.json", ("dwpose.safetensors",), _empty("cases"), "nothing to compare"),
        ("manifest_unet_reduced.json", (), _empty("keys"), "nothing to compare"),
    ],
)
def test_a_golden_emptied_of_its_cases_does_not_pass(tmp_path, file, beside, change, said):
    path = subset(tmp_path, file, *beside) / file
    (change_json if file.endswith(".json") else change_npz)(path, change)
    summary, lines = run(tmp_path)
    if said is None:  # the boxes stand in the other file, with checksums of their own
        assert summary.failed == 0
        return
    assert summary.failed > 0
    assert any("FAIL" in line and re.search(said, line) for line in lines), lines


def test_tensors_without_elements_do_not_pass(tmp_path):
    file = subset(tmp_path, "unet_reduced.safetensors") / "unet_reduced.safetensors"

    def cut(tensors):
        for name in list(tensors):
            if name in ("latent_in", "audio_in", "out"):
                tensors[name] = tensors[name][:0].clone()
            else:
                del tensors[name]

    change_tensors(file, cut)
    assert run(tmp_path)[0].passed == 0


def test_distances():
    a = np.array([1.0, 2.0, 3.0, 4.0])
    d = distance(a + np.array([0, 0, 0, 2.0]), a)
    assert (d.worst, d.rms, d.mean, d.share) == (2.0, 1.0, 0.5, 0.25)
    assert d.within(Tolerance(2, rms=1, mean=0.5, share=0.25))
    assert not d.within(Tolerance(2, share=0.2))
    assert distance(a[:3], a).why == "shape (3,) instead of (4,)"
    assert not distance(a * np.nan, a).within(Tolerance(1e9))
    assert distance(a * 0, a * 0).cosine == 1.0
    assert distance(-a, a).cosine == pytest.approx(-1.0)


def test_nothing_compared_is_a_failure():
    nothing = np.zeros((0, 4))
    for compared in (
        close("empty", {"a": (nothing, nothing)}, Tolerance(1)),
        exact("empty", {"a": (nothing, nothing)}),
    ):
        assert compared.status == "FAIL"
        assert "nothing to compare" in compared.note
    with pytest.raises(ValueError, match="cases is empty: nothing to compare"):
        some([], "cases")
    assert some([1], "cases") == [1]
    assert close("empty", {}, Tolerance(1)).status == "FAIL"
    assert exact("empty", {}).status == "FAIL"
