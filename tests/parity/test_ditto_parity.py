"""`talkinghead parity` on Ditto's goldens: which files are covered, parts of the directory, other inputs, damage.

The networks of full size cost minutes; test_ditto_nets and test_ditto_motion run them. Here it is the stitching network, which
is small, and everything that is no network.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from parity.recipe import GOLDEN as MUSETALK_GOLDEN
from safetensors.torch import load_file, save_file

from talkinghead.cli import main
from talkinghead.nodes.core.parity_measure import FAILED, NOT_RUN, OK
from talkinghead.nodes.core.parity_run import kind_of
from talkinghead.nodes.ditto.parity import KIND, run_parity
from talkinghead.nodes.ditto.parity_recipe import DittoGoldens
from talkinghead.nodes.musetalk.parity import KIND as MUSETALK

GOLDEN = Path(__file__).parents[1] / "golden" / "ditto"
# Run by other tests, one by one: large networks, and option sets that take seconds.
COSTLY = {"nets", "e2e_motion", "detect", "crop", "motion_stitch", "audio2motion", "weight_probes"}


def subset(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        shutil.copyfile(GOLDEN / name, folder / name)
    return folder


def run(directory: Path, **options):
    lines: list[str] = []
    summary = run_parity(directory, out=lines.append, **options)
    assert lines == [*map(str, summary.results), str(summary)]
    return summary


def named(summary, status: str) -> list[str]:
    return [result.name for result in summary.results if result.status == status]


def test_every_file_is_known():
    files = {path.name for path in GOLDEN.iterdir() if path.suffix != ".md"}
    assert KIND.files == files


def test_what_is_cheap_passes(tmp_path):
    files = [
        path.name
        for path in GOLDEN.iterdir()
        if path.suffix != ".md" and path.stem not in COSTLY and not path.stem.startswith("manifest_")
    ]
    summary = run(subset(tmp_path / "goldens", *files, "manifest_stitch_network.json"))
    assert summary.failed == 0, str(summary.results)
    said = {name.partition(".")[0] for name in named(summary, OK)}
    assert said == {
        "recipe", "input_probes", "manifest_stitch_network", "geometry", "putback", "schedule", "condition", "audio",
    }  # fmt: skip
    assert set(named(summary, NOT_RUN)) == {
        "manifest_stitch_network.recipe",
        "condition.argument_edge_cases",
        "nets_stats",
        "nets_noise",
        "sensitivity",
    }
    notes = {result.name: result.note for result in summary.results}
    assert notes["nets_stats"] == "it needs nets.safetensors beside it"
    assert "tolerances" in notes["nets_noise"]


def test_weights_are_probed(tmp_path):
    folder = subset(tmp_path / "goldens", "weight_probes.json", "manifest_stitch_network.json")
    assert named(run(folder), OK) == [
        "weight_probes",
        *(f"manifest_stitch_network{part}" for part in ("", ".recipe_ends", ".recipe_norm")),
    ]
    described = json.loads((folder / "weight_probes.json").read_text())
    described["lmdm"].pop("null_cond_hidden")
    described["stitch_network"]["mlp.0.weight"][1] += 1e-6
    (folder / "weight_probes.json").write_text(json.dumps(described))
    assert named(run(folder), FAILED) == ["weight_probes", "manifest_stitch_network.recipe_ends"]


def stitched(folder: Path, salt: str, stats: bool = True) -> Path:
    """A directory whose nets.safetensors holds the stitching network's outputs for salted inputs."""
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps({"input_salt": salt}))
    goldens, data, described = DittoGoldens(folder), {}, json.loads((GOLDEN / "nets_stats.json").read_text())
    for batch in (1, 2):
        kp = (goldens.inputs(name, batch) for name in ("kp_source", "kp_driving"))
        name = f"stitch.b{batch}.out"
        data[name] = goldens.net("stitch_network")(*kp)
        if stats:
            described[name]["l2"] = data[name].double().norm().item()
    save_file(data, folder / "nets.safetensors")
    kept = {name: value for name, value in described.items() if name in data}
    (folder / "nets_stats.json").write_text(json.dumps(kept))
    return folder


def test_other_inputs_by_a_salt(tmp_path):
    folder = stitched(tmp_path / "salted", "other.")
    summary = run(folder)
    assert named(summary, OK) == ["nets_stats", "nets.stitch.b1", "nets.stitch.b2"]
    absent = {result.name: result.note for result in summary.results if result.status == NOT_RUN}
    assert set(absent) == {
        "recipe.gains",
        *(f"nets.{n}" for n in ("motion", "appearance", "warp", "decoder", "chain")),
        *(f"nets.lmdm{n}" for n in ("", ".ddim", ".ddim4.global_seed1024")),
    }
    assert absent["nets.motion"] == "nets.safetensors has none of its tensors"
    for salt in ("", "another."):
        (folder / "recipe.json").write_text(json.dumps({"input_salt": salt}))
        assert {"nets.stitch.b1", "nets.stitch.b2"} <= set(named(run(folder), FAILED))


def test_norms_and_probes_of_unsalted_inputs_are_told_apart(tmp_path):
    folder = stitched(tmp_path / "salted", "other.", stats=False)
    subset(folder, "input_probes.json")
    summary = run(folder)
    assert summary.failed == 0
    assert {"nets_stats.l2", "input_probes"} <= set(named(summary, NOT_RUN))
    described = json.loads((folder / "input_probes.json").read_text())
    described["x.1"]["last"] += 0.1
    (folder / "input_probes.json").write_text(json.dumps(described))
    assert named(run(folder), FAILED) == ["input_probes"]
    plain = subset(tmp_path / "plain", "input_probes.json", "nets_stats.json")
    data = {name: value for name, value in load_file(GOLDEN / "nets.safetensors").items() if "stitch" in name}
    save_file(data, plain / "nets.safetensors")
    stats = json.loads((plain / "nets_stats.json").read_text())
    stats = {name: value for name, value in stats.items() if name in data}
    (plain / "nets_stats.json").write_text(json.dumps(stats))
    assert run(plain).failed == 0
    stats["stitch.b1.out"]["l2"] *= 1.001  # without a salt a norm that differs is a failure
    (plain / "nets_stats.json").write_text(json.dumps(stats))
    assert named(run(plain), FAILED) == ["nets.stitch.b1"]


def test_a_salt_reaches_every_input(tmp_path):
    (tmp_path / "recipe.json").write_text(json.dumps({"input_salt": "other."}))
    salted, plain = DittoGoldens(tmp_path), DittoGoldens(GOLDEN)
    for name in json.loads((GOLDEN / "input_probes.json").read_text()):
        what, _, item = name.partition(".")
        a, b = (goldens.one_input(what, int(item)) for goldens in (salted, plain))
        assert a.shape == b.shape
        assert not torch.isclose(a, b).all()
    assert not torch.equal(salted.draw("ddim.xT", (4,)), plain.draw("ddim.xT", (4,)))


def test_damage_fails_and_the_rest_runs(tmp_path):
    folder = subset(tmp_path / "goldens", "geometry.json", "geometry.safetensors", "putback.json")
    whole = (folder / "geometry.safetensors").read_bytes()
    (folder / "geometry.safetensors").write_bytes(whole[:500])
    subset(folder, "schedule.json", "schedule.safetensors")
    (folder / "surprise.json").write_text("{}")
    summary = run(folder)
    assert named(summary, FAILED) == ["geometry"]
    assert "schedule.steps" in named(summary, OK)
    notes = {result.name: result.note for result in summary.results if result.status == NOT_RUN}
    assert notes == {
        "putback": "it needs putback.safetensors beside it",
        "surprise": "no golden of this name is known",
    }


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ((GOLDEN / "geometry.json",), KIND),
        ((GOLDEN / "recipe.json", MUSETALK_GOLDEN / "bbox_cases.json", GOLDEN / "crop.json"), KIND),
        ((MUSETALK_GOLDEN / "bbox_cases.json",), MUSETALK),
    ],
)
def test_the_kind_of_a_directory_shows_in_its_files(tmp_path, files, kind):
    for file in files:
        shutil.copy(file, tmp_path)
    assert kind_of(tmp_path, (MUSETALK, KIND)) is kind


def test_directories_of_no_kind(tmp_path):
    assert not MUSETALK.files & KIND.files
    with pytest.raises(ValueError, match=r"holds no golden file.*MuseTalk: manifest.*; Ditto: recipe.json"):
        kind_of(tmp_path, (MUSETALK, KIND))
    with pytest.raises(ValueError, match="of the form of tests/golden/musetalk or tests/golden/ditto"):
        kind_of(tmp_path / "none", (MUSETALK, KIND))
    with pytest.raises(ValueError, match="holds no golden file"):
        run_parity(subset(tmp_path / "other"))
    with pytest.raises(ValueError, match="'int8' is unknown"):
        run_parity(GOLDEN, dtype="int8")


def test_the_command(tmp_path, capsys):
    folder = subset(tmp_path / "goldens", "geometry.json", "geometry.safetensors")
    assert main(["parity", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "7 passed, 0 failed, 0 not run"
    data = load_file(folder / "geometry.safetensors")
    data["eye_delta.1"][0] += 0.1
    save_file(data, folder / "geometry.safetensors")
    assert main(["parity", str(folder)]) == 1
