"""ComfyUI and the pack in this process: nodes are called as ComfyUI calls them, without a server.

Whatever must not see ComfyUI's modules runs before (tests/conftest.py puts the folders in order).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ROOT


@pytest.fixture(scope="session")
def comfy_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comfy-in-process")


@pytest.fixture(scope="session")
def node_classes(comfy_tree: Path, comfy_base: Path) -> dict[str, type]:
    """Node id -> V3 class."""
    from in_process import boot, load_pack, node_classes

    boot(comfy_tree, comfy_base)
    pack = comfy_base / "custom_nodes" / "ComfyUI-TalkingHead"
    pack.symlink_to(ROOT, target_is_directory=True)
    return node_classes(load_pack(pack))


@pytest.fixture(scope="session")
def run_node(node_classes):
    """Return a function that executes a node on a locked clone of its class: (id, **inputs) -> NodeOutput.

    Inputs left out take the schema's defaults; `.result` of the answer is the tuple of outputs.
    """
    import torch

    def run(node_id: str, **inputs: object):
        cls = node_classes[node_id]
        defaults = {
            i.id: i.default
            for i in cls.GET_SCHEMA().inputs
            if getattr(i, "default", None) is not None and not i.optional
        }
        with torch.inference_mode():
            return cls.PREPARE_CLASS_CLONE({}).EXECUTE_NORMALIZED(**(defaults | inputs))

    return run
