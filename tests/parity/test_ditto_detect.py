"""Ditto's detectors, landmarks and eyes against the reference data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from talkinghead.nodes.core.parity_measure import FAILED, OK
from talkinghead.nodes.ditto.parity_detect import detect
from talkinghead.nodes.ditto.parity_recipe import DittoGoldens

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"


def test_goldens():
    results = list(detect(DittoGoldens(GOLDEN)))
    assert len(results) == 21
    assert all(result.status == OK for result in results), [str(r) for r in results if r.status != OK]


@pytest.mark.parametrize(
    ("key", "at", "change", "where"),
    [
        ("det.1080x1920.det", 3, 0.01, "detect.boxes"),
        ("det.640x360.kps", 11, 0.01, "detect.boxes"),
        ("det.300x400.blob_sub", 9, 0.05, "detect.inputs"),
        ("det.max2.det", 0, 0.01, "detect.largest"),
        ("lmk106.case1.M", 2, 0.01, "detect.squares"),
        ("lmk106.case2.pts", 40, 0.01, "detect.landmarks"),
        ("lmk106.case2.blob_sub", 40, 6, "detect.landmark_inputs"),
        ("lmk203.pts", 7, 0.01, "detect.landmarks"),
        ("blaze.anchors", 600, 1e-4, "detect.anchors"),
        ("blaze.detections", 16, 0.01, "detect.blaze"),
        ("blaze.input_sub", 16, 0.05, "detect.blaze_input"),
        ("roi.case1", 4, 0.01, "detect.roi"),
        ("mesh.case1.points", 5, 0.01, "detect.mesh"),
        ("mesh.case2.input_sub", 300, 0.05, "detect.mesh_input"),
        ("lmk478.512", 70, 1e-4, "detect.mesh_whole"),
        ("eye.open", 1, 1e-4, "detect.eye_open"),
        ("eye.ball", 4, 1e-4, "detect.eye_ball"),
        ("eye.ball_direc", 4, 1e-4, "detect.eye_ways"),
    ],
)
def test_one_changed_number_fails_under_its_name(tmp_path, key, at, change, where):
    data = load_file(GOLDEN / "detect.safetensors")
    data[key].view(-1)[at] += change
    save_file(data, tmp_path / "detect.safetensors")
    shutil.copy(GOLDEN / "detect.json", tmp_path)
    failed = [result.name for result in detect(DittoGoldens(tmp_path)) if result.status == FAILED]
    assert failed == [where]


def test_a_count_that_differs_fails(tmp_path):
    shutil.copy(GOLDEN / "detect.safetensors", tmp_path)
    described = json.loads((GOLDEN / "detect.json").read_text())
    described["det.640x360"]["n"] = 7
    (tmp_path / "detect.json").write_text(json.dumps(described))
    failed = [result.name for result in detect(DittoGoldens(tmp_path)) if result.status == FAILED]
    assert failed == ["detect.sizes 640x360"]
