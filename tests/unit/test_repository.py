"""Rules of the repository that no reader should have to remember."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOT_OURS = {
    *(".git", ".venv", ".comfy", ".train", ".ruff_cache", ".pytest_cache"),
    *("node_modules", "out", "build", "dist", "golden", "__pycache__"),
}
TEXT = {".py", ".md", ".json", ".toml", ".js", ".mjs", ".txt", ".sh", ".css", ".html", ""}
MAX_LINES = 500
COMFY_MODULES = {
    "comfy",
    "comfy_api",
    "comfy_execution",
    "comfy_extras",
    "execution",
    "folder_paths",
    "server",
}


def ours(*suffixes: str, below: str = ".") -> Iterator[Path]:
    """Yield the repository's own files with one of the suffixes, relative to its root."""
    for path in sorted((ROOT / below).rglob("*")):
        relative = path.relative_to(ROOT)
        hidden = NOT_OURS.intersection(relative.parts) or any(p.endswith(".egg-info") for p in relative.parts)
        if path.is_file() and not hidden and (not suffixes or path.suffix in suffixes):
            yield relative


def pack_files() -> list[Path]:
    """Return the Python files that are installed: the root's and everything under nodes/ and cli/."""
    return [p for p in ours(".py") if len(p.parts) == 1 or p.parts[0] in ("nodes", "cli")]


def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Yield (top-level module, level) of every import statement, wherever it stands."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0], node.level


def requirement_name(line: str) -> str:
    return re.match(r"[\w.-]+", line).group().lower()


def test_packages_are_the_folders_with_python_files():
    listed = PROJECT["tool"]["setuptools"]
    folders = {p.parent.as_posix() for p in pack_files()}
    names = {
        folder: "talkinghead" if folder == "." else "talkinghead." + folder.replace("/", ".")
        for folder in folders
    }
    assert sorted(listed["packages"]) == sorted(names.values())
    assert {v: k for k, v in listed["package-dir"].items()} == names
    assert all((ROOT / folder / "__init__.py").is_file() for folder in folders)


def test_requirements_txt_is_the_base_dependencies():
    lines = [line.partition("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    assert [line for line in lines if line] == PROJECT["project"]["dependencies"]


def test_dependencies_leave_comfyui_alone():
    project = PROJECT["project"]
    everything = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    for line in everything:
        assert not re.match(
            r"(torch|torchvision|torchaudio|triton|xformers|nvidia)\b", requirement_name(line)
        ), line
        assert "@" not in line, f"{line}: no direct addresses"
        assert not re.search(r"==|<|~=", line), f"{line}: an upper bound or pin fights other packs"


def test_changelog_knows_the_version():
    assert f"## {PROJECT['project']['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_file_is_too_long():
    long = {}
    for path in ours(".py", ".js", ".mjs", ".sh"):
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            long[str(path)] = lines
    assert long == {}


def test_ruff_is_content():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pack_imports_itself_relatively():
    for path in pack_files():
        absolute = {name for name, level in imported(path) if level == 0}
        assert "nodes" not in absolute, f"{path}: `nodes` is ComfyUI's own module"
        assert "talkinghead" not in absolute, f"{path}: inside ComfyUI the pack has another name"


def test_only_node_files_know_comfyui():
    for path in pack_files():
        is_node_file = path.parts[0] == "nodes" and path.stem.endswith(("nodes", "_routes", "extension"))
        found = {name for name, level in imported(path) if level == 0} & COMFY_MODULES
        assert is_node_file or not found, f"{path} imports {found}"


def test_v3_only():
    for path in pack_files():
        assert "NODE_CLASS_MAPPINGS" not in (ROOT / path).read_text(encoding="utf-8"), (
            f"{path}: it would switch V3 off"
        )


SNAPSHOT = """
import json, os, sys, tempfile, threading
def state():
    return [dict(os.environ), os.getcwd(), tempfile.gettempdir(), list(sys.path), threading.active_count(),
            [repr(f) for f in sys.meta_path], id(sys.stdout), id(sys.excepthook)]
import importlib
before = state()
for name in NAMES:
    importlib.import_module(name)
loaded = {m.partition(".")[0] for m in sys.modules}
print(json.dumps({"same": before == state(), "loaded": sorted(loaded)}))
"""


def test_importing_the_package_does_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"NAMES = ['talkinghead', 'talkinghead.nodes']\n{SNAPSHOT}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["same"]
    assert done.stderr == ""
    assert not {"torch", "numpy", "av", "cv2", "einops", "safetensors"}.intersection(answer["loaded"])
    assert list(tmp_path.iterdir()) == []


def test_every_workflow_has_a_twin_in_api_format():
    graphs, prompts = ROOT / "workflows", ROOT / "workflows" / "api"
    assert {p.name for p in graphs.glob("*.json")} == {p.name for p in prompts.glob("*.json")}
    for path in graphs.glob("*.json"):
        assert isinstance(json.loads(path.read_text())["nodes"], list), f"{path.name} is not in UI format"
        twin = json.loads((prompts / path.name).read_text())
        assert all("class_type" in node for node in twin.values()), f"api/{path.name} is not in API format"


def test_a_wheel_holds_what_the_pack_needs(tmp_path):
    source = tmp_path / "source"
    skip = shutil.ignore_patterns(*NOT_OURS, "tests", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=skip)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(tmp_path), str(source)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {n.removeprefix("talkinghead/") for n in archive.namelist() if n.startswith("talkinghead/")}
    data = {p for folder in ("web", "workflows", "nodes") for p in ours(below=folder)}
    wanted = {p.as_posix() for p in data | set(pack_files())}
    assert wanted - held == set()
    assert held - wanted == set()


def test_no_file_names_a_machine():
    place = re.compile(r"(?<![\w.~$}])/(?:work|home|root|Users)/\w|[A-Z]:\\+Users\\")
    for path in ours():
        if path.suffix in TEXT:
            for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                assert not place.search(line), f"{path}:{number}: {line.strip()[:120]}"


def test_every_skip_gives_its_reason():
    for path in ours(".py", below="tests"):
        for node in ast.walk(tree_of(path)):
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("pytest.skip", "pytest.mark.skip", "pytest.mark.xfail", "pytest.xfail"):
                    assert node.args or node.keywords, f"{where}: {name} without a reason"
                if name == "pytest.mark.skipif":
                    assert any(k.arg == "reason" for k in node.keywords), f"{where}: {name} without a reason"
        bare = re.search(
            r"^\s*@pytest\.mark\.(skip|xfail)\s*$", (ROOT / path).read_text(encoding="utf-8"), re.M
        )
        assert not bare, f"{path}: {bare.group().strip()} without a reason"


@pytest.mark.parametrize("name", ["Makefile", ".ci/run"])
def test_scripts_parse(name):
    command = ["make", "-n", "env", "python"] if name == "Makefile" else ["bash", "-n", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
