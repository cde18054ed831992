"""Ditto's motion against the reference tensors: LMDM at full size, and everything from speech windows to smoothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from talkinghead.nodes.core.parity_measure import FAILED, NOT_RUN, OK
from talkinghead.nodes.core.weights import on_meta
from talkinghead.nodes.ditto import parity_lmdm, parity_motion
from talkinghead.nodes.ditto.lmdm import LMDM, LMDMConfig
from talkinghead.nodes.ditto.parity_recipe import DittoGoldens

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"
SCHEMES = "offline offline_nosmo offline_smo5_fix2 online70 online75 online10 online40_fix3".split()
NAMES = {
    "schedule": [f"schedule.{part}" for part in ("tables", "factors", "steps", "first_c", "times")],
    "condition": [f"condition.{part}" for part in ("rows", "speech", "labels", "widths")],
    "joins": [
        *(f"audio2motion.{name}{part}" for name in SCHEMES for part in ("", ".sizes")),
        "audio2motion.template",
    ],
    "speech_windows": ["audio.rows", "audio.windows"],
    "speech_order": [
        *(f"audio.{mode}_{part}" for mode in ("offline", "online") for part in ("order", "tables")),
        "audio.online_latency",
    ],
    "manifest": [f"manifest_lmdm{part}" for part in ("", ".recipe_ends", ".recipe_norm")],
    "steps": [
        *(f"nets.lmdm.{part}" for part in ("b1.t999", "b1.t500", "b2.t999", "b2.t500", "b2.t19")),
        "nets.lmdm.b2.mixed_t.x_start",
    ],
    "ddim": [f"nets.lmdm.ddim{n}" for n in (2, 4, 10, 25, 50)],
    "seeded_session": ["nets.lmdm.ddim4.global_seed1024"],
    "end_to_end": ["e2e_motion.res_kp_seq_265", "e2e_motion.key_points"],
}
LMDM_PARTS = ("manifest", "steps", "ddim", "seeded_session", "end_to_end")


def run(goldens: DittoGoldens, part: str) -> list:
    functions = parity_lmdm if part in LMDM_PARTS else parity_motion
    with torch.no_grad():
        return list(getattr(functions, part)(goldens))


@pytest.fixture(scope="module")
def goldens():
    return DittoGoldens(GOLDEN)


@pytest.mark.parametrize("part", NAMES)
def test_golden(goldens, part):
    results = run(goldens, part)
    ran = [result for result in results if result.status != NOT_RUN]
    assert [result.name for result in ran] == NAMES[part]
    assert all(result.status == OK for result in ran), [str(result) for result in ran]


def test_what_is_left_out_is_said(goldens):
    [left] = [r for part in ("condition", "joins") for r in run(goldens, part) if r.status == NOT_RUN]
    assert left.name == "condition.argument_edge_cases"


def test_every_stored_array_is_compared(goldens):
    """Arrays of the goldens that no function reads would be no goldens."""

    class Watched(DittoGoldens):
        def tensors(self, name, prefix=""):
            found = super().tensors(name, prefix)
            unread.setdefault(name, set(super().tensors(name)))

            class Read(dict):
                def __getitem__(self, key):
                    unread[name].discard(key)
                    return super().__getitem__(key)

                def items(self):
                    unread[name].clear()
                    return super().items()

            return Read(found)

    unread: dict[str, set] = {}
    watched = Watched(GOLDEN)
    for part in ("schedule", "condition", "joins", "speech_windows"):
        run(watched, part)
    left = {name: sorted(keys) for name, keys in unread.items() if keys}
    other_backend = [f"steps{n}.{k}_numpy_backend" for n in (2, 4, 10, 25, 50) for k in ("c", "sigma")]
    assert left == {
        "schedule": sorted([*other_backend, "alphas_cumprod_numpy_backend"]),
        "condition": ["aud.first_last"],
        "audio2motion": ["fuse_alpha_10"],
    }


def subset(folder: Path, *files: str) -> DittoGoldens:
    for file in files:
        shutil.copy(GOLDEN / file, folder)
    return DittoGoldens(folder)


@pytest.mark.parametrize(
    ("part", "file", "key", "by", "name"),
    [
        ("schedule", "schedule", "steps10.sigma", 1e-5, "schedule.steps"),
        ("condition", "condition", "vid_emo4_idx11.tail", 1e-4, "condition.rows"),
        ("joins", "audio2motion", "online70.kp_cond_used", 1e-4, "audio2motion.online70"),
        ("speech_windows", "audio", "offline.n16000.feat", 1.0, "audio.rows"),
    ],
)
def test_one_wrong_value_fails_under_its_name(tmp_path, part, file, key, by, name):
    changed = subset(tmp_path, f"{file}.json", f"{file}.safetensors")
    stored = load_file(tmp_path / f"{file}.safetensors")
    stored[key].view(-1)[-1] += by
    save_file(stored, tmp_path / f"{file}.safetensors")
    assert [r.name for r in run(changed, part) if r.status == FAILED] == [name]


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        (
            ("online_schedule", "overlap70.N50", "lmdm_windows_first_last_unique"),
            [[-70, 9, 80]],
            "audio.online_tables",
        ),
        (("online_schedule", "overlap70.N50", "d0_exp_last"), 0.0, "audio.online_tables"),
        (("online_fed_vs_ready", "75"), [[5, 5]], "audio.online_latency"),
        (
            ("offline_schedule", "overlap20.N200", "lmdm_windows_first_last_unique"),
            [],
            "audio.offline_tables",
        ),
    ],
)
def test_one_wrong_table_fails_under_its_name(tmp_path, path, value, name):
    changed = subset(tmp_path, "audio.json")
    described = changed.json("audio")
    at = described
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (tmp_path / "audio.json").write_text(json.dumps(described))
    assert [r.name for r in run(changed, "speech_order") if r.status == FAILED] == [name]


def test_a_salt_changes_the_inputs(goldens, tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"input_salt": "other."}))
    salted = DittoGoldens(tmp_path)
    for what in ("x", "cond_frame", "cond"):
        made = [parity_lmdm.lmdm_input(source, what, 2) for source in (salted, goldens)]
        assert made[0].shape == made[1].shape
        assert not torch.equal(made[0], made[1])
    probes = goldens.json("input_probes")
    for what in ("x", "cond_frame", "cond"):
        given = parity_lmdm.lmdm_input(goldens, what, 2)
        for b in range(2):
            assert given[b].flatten()[:4].tolist() == pytest.approx(probes[f"{what}.{b}"]["first"], abs=1e-6)


def test_lmdm_is_built_without_memory_for_weights():
    assert all(parameter.is_meta for parameter in on_meta(LMDM, LMDMConfig()).parameters())
