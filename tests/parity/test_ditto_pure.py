"""Ditto's geometry, motion stitch, crop and put-back against the reference data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from talkinghead.nodes.core.parity_measure import FAILED, OK
from talkinghead.nodes.ditto import parity_pure
from talkinghead.nodes.ditto.parity_recipe import DittoGoldens

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"


def run(name, folder=GOLDEN):
    with torch.no_grad():
        return list(getattr(parity_pure, name)(DittoGoldens(folder)))


@pytest.mark.parametrize(
    ("name", "n_results"), [("geometry", 7), ("motion_stitch", 1), ("crop", 7), ("putback", 4)]
)
def test_goldens(name, n_results):
    results = run(name)
    assert len(results) == n_results
    assert all(result.status == OK for result in results), [str(r) for r in results if r.status != OK]


@pytest.mark.parametrize(
    ("name", "key", "where", "change"),
    [
        ("geometry", "eye_delta.1", "geometry.gaze", 2e-5),
        ("motion_stitch", "fade_s_after_delta_pitch_BUG.x_d", "motion_stitch", 3e-5),
        ("crop", "case7.lmk224.M_c2o", "crop.matrices", 5e-5),
        ("putback", "mask.row256", "putback.mask", 2e-5),
    ],
)
def test_one_changed_number_fails_under_its_name(tmp_path, name, key, where, change):
    data = load_file(GOLDEN / f"{name}.safetensors")
    data[key].view(-1)[0] += change
    save_file(data, tmp_path / f"{name}.safetensors")
    shutil.copy(GOLDEN / f"{name}.json", tmp_path)
    failed = [result for result in run(name, tmp_path) if result.status == FAILED]
    assert [result.name for result in failed] == [where]
