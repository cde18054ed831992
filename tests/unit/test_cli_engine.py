"""`talkinghead engine` and --backend: what they print, their exit codes, what they leave."""

import json
import os

import numpy as np
import pytest
import soundfile
import torch
from engine_stubs import SPEC, StubRunner

from talkinghead import cli
from talkinghead.nodes.core import engine as engine_module
from talkinghead.nodes.core.engine_cache import EngineCache, engine_key
from talkinghead.nodes.core.engine_spec import EngineIdentity, EngineSkipped, RunnerRequest
from talkinghead.nodes.core.report import Report


def run(capsys, *args):
    code = cli.main([str(a) for a in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def built(tmp_path):
    """Two engines of one file each, the second for another card; returns the cache and their names."""
    cache = EngineCache(tmp_path / "engines")
    cache.folder.mkdir()
    names = []
    for batch, sm in ((8, "cpu"), (4, "sm_75")):
        request = RunnerRequest(
            SPEC, None, {}, batch, torch.device("cpu"), None, None, EngineIdentity("fp16"), False, Report()
        )
        key = engine_key(request, "tensorrt", ()) | {"sm": sm}
        cache.place(key, ".plan").write_bytes(os.urandom(50))
        names.append(cache.write(key, ".plan", {"build_seconds": 3.0}).name)
    return cache, names


def test_list_verify_and_clear(built, capsys, tmp_path):
    cache, (mine, other) = built
    code, out, _ = run(capsys, "engine", "list", "--models", tmp_path)
    assert code == 0
    assert f"{mine}; ready; 50 B; built in 3.0 s" in out
    assert f"{other}; for another machine: sm sm_75, here cpu" in out
    assert run(capsys, "engine", "verify", "--models", tmp_path)[0] == 0
    (cache.folder / f"{mine}.plan").write_bytes(bytes(50))
    code, out, _ = run(capsys, "engine", "verify", "--models", tmp_path, "--json")
    assert code == 1
    rows = {row["name"]: row["state"] for row in json.loads(out)["built"]}
    assert rows[mine].startswith("damaged: ")
    code, _, err = run(capsys, "engine", "clear", "absent", "--models", tmp_path)
    assert code == 2
    assert "no engine 'absent'" in err
    code, out, _ = run(capsys, "engine", "clear", mine, "--models", tmp_path, "--json")
    assert json.loads(out)["deleted"] == [f"{mine}.json", f"{mine}.plan"]
    assert cache.names() == [other]
    assert run(capsys, "engine", "clear", "--models", tmp_path)[0] == 0
    assert "no built engines in" in run(capsys, "engine", "list", "--models", tmp_path)[1]


def test_build_on_a_cpu_says_what_there_is(tiny_model, capsys, tmp_path, monkeypatch):
    code, out, err = run(
        capsys, "engine", "build", "--models", tmp_path, "--batch", 2, "--device", "cpu", "--json"
    )
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["backend"], facts["batch"], facts["parity"]["cosine"]) == ("eager", 2, 1.0)
    assert facts["report"]["musetalk engine"] == "eager, batch 2, on cpu"
    how = ("engine", "build", "--models", tmp_path, "--device", "cpu", "--batch")
    code, _, err = run(capsys, *how, 2, "--backend", "tensorrt")
    assert code == 2
    assert "backend tensorrt cannot be built here: " in err
    assert run(capsys, *how, 65)[0] == 2
    assert not (tmp_path / "engines").exists()
    monkeypatch.setitem(engine_module.OPENERS, "inductor", StubRunner)
    code, out, _ = run(capsys, *how, 2, "--backend", "inductor")
    assert code == 0
    assert "backend: inductor" in out


def test_render_takes_a_backend_and_reports_it(tiny_model, avatar, capsys, tmp_path, monkeypatch):
    avatar("p")
    t = np.arange(8000) / 16000
    soundfile.write(tmp_path / "a.wav", np.sin(900 * t) * 0.3, 16000)

    def skip(request):
        raise EngineSkipped("no compiler here")

    monkeypatch.setitem(engine_module.OPENERS, "inductor", skip)
    how = (
        "render", "--avatar", "p", "--audio", tmp_path / "a.wav", "--out", tmp_path / "v.mp4", "--models", tmp_path,
        "--json",
    )  # fmt: skip
    code, out, err = run(capsys, *how, "--backend", "inductor", "--device", "cpu")
    assert code == 0, err
    report = json.loads(out)["report"]
    assert report["musetalk engine"] == "eager, batch 8, on cpu"
    assert report["engines passed over"] == "inductor: no compiler here"
    code, _, err = run(capsys, *how, "--backend", "turbo")
    assert code == 2
    assert "backend 'turbo' is unknown; use one of auto, tensorrt" in err
    code, _, err = run(capsys, *how, "--device", "cuda:99")
    assert code == 2
    assert "device 'cuda:99' cannot be used" in err
