"""Demo presenters: built when needed, made anew when what is there is not theirs; names that users may take."""

from __future__ import annotations

import json

import pytest

from talkinghead.nodes.avatars.names import check_new_id, demo_presenters
from talkinghead.nodes.avatars.presenters import resolve_avatar
from talkinghead.nodes.core.frames import RunContext


def test_a_demo_is_built_once_and_anew_when_its_packet_says_other_weights(tmp_path):
    first = resolve_avatar(RunContext(), "demo", [tmp_path])
    manifest = first.path / "packet.json"
    made = manifest.stat().st_mtime_ns
    assert resolve_avatar(RunContext(), "demo", [tmp_path]).digest == first.digest
    assert manifest.stat().st_mtime_ns == made
    whole = json.loads(manifest.read_text("utf-8"))
    for change in ({"model": {}}, {"model": {"sha256": "f" * 64}}, {"source": {}}, {"files": {}}):
        manifest.write_text(json.dumps({**whole, **change}), "utf-8")
        again = resolve_avatar(RunContext(), "demo", [tmp_path])
        assert again.info == first.info, change


@pytest.mark.parametrize("name", ["demo", "DEMO", "Demo_Loop", "demo_loop2"])
def test_names_of_demos_are_theirs_in_any_case(name):
    assert name.lower() in demo_presenters()
    with pytest.raises(ValueError, match=f"'{name}' is that of a demo"):
        check_new_id(name)


@pytest.mark.parametrize("name", ["auto-x", "Auto-show", "auto-0123456789abcdef"])
def test_names_of_just_in_time_builds_are_theirs(name):
    with pytest.raises(ValueError, match=f"'{name}' starts with 'auto-'"):
        check_new_id(name)


@pytest.mark.parametrize("name", ["anna", "automatic", "demonstration", "auto", "日本"])
def test_other_names_are_free(name):
    assert check_new_id(name) == name


def test_names_that_cannot_be_folders_are_refused():
    for name in ("", "..", "a/b", "con"):
        with pytest.raises(ValueError, match="avatar name"):
            check_new_id(name)
