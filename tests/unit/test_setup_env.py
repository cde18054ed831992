"""Which ComfyUI the tests take, and what they may install for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import setup_env


def fake_tree(folder: Path, requirements: str = "") -> Path:
    folder.mkdir(parents=True)
    for name in ("main.py", "nodes.py", "folder_paths.py"):
        (folder / name).touch()
    (folder / "requirements.txt").write_text(requirements)
    return folder


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path, monkeypatch):
    monkeypatch.delenv("COMFYUI_DIR", raising=False)
    monkeypatch.setattr(setup_env, "ROOT", tmp_path / "somewhere" / "pack")
    monkeypatch.setattr(setup_env, "FETCHED", tmp_path / "fetched")


def test_no_tree_is_none():
    assert setup_env.find_tree() is None


def test_the_setting_comes_first_then_the_place_then_the_fetched_one(tmp_path, monkeypatch):
    fetched = fake_tree(tmp_path / "fetched")
    assert setup_env.find_tree() == fetched
    around = fake_tree(tmp_path / "ComfyUI")
    monkeypatch.setattr(setup_env, "ROOT", around / "custom_nodes" / "pack")
    assert setup_env.find_tree() == around
    wanted = fake_tree(tmp_path / "other place")
    monkeypatch.setenv("COMFYUI_DIR", str(wanted))
    assert setup_env.find_tree() == wanted


def test_a_wrong_setting_is_not_passed_over(tmp_path, monkeypatch):
    fake_tree(tmp_path / "fetched")
    monkeypatch.setenv("COMFYUI_DIR", str(tmp_path))
    with pytest.raises(ValueError, match="holds no ComfyUI"):
        setup_env.find_tree()


def test_only_what_is_absent_is_installed(tmp_path):
    lines = (
        "torch\ntorchvision\nnumpy<2\nav==1.0  # old\ncomfyui_frontend_package==1.0\n\n# note\nnot-there>=2\n"
    )
    assert setup_env.wanted_by(fake_tree(tmp_path / "tree", lines))[:1] == ["not-there>=2"]
