"""Order of the suite and the fixtures of its server tests: one ComfyUI server for the whole session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
# At the end, so that nothing of a ComfyUI tree put in front later is hidden.
sys.path += [str(TESTS), str(TESTS / "comfy")]

# Quick and pure first. ComfyUI is imported into this process for tests/nodes, so whatever must not see
# that comes before; tests/comfy and tests/browser talk to a server in a process of its own.
ORDER = ("unit", "parity", "workflows", "gpu", "nodes", "comfy", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(TESTS).parts[0]
        return ORDER.index(folder) if folder in ORDER else 0

    items.sort(key=rank)


@pytest.fixture(scope="session")
def comfy_tree() -> Path:
    from setup_env import find_tree
    from support import unavailable

    tree = find_tree()
    if tree is None:
        unavailable("no ComfyUI tree: set COMFYUI_DIR or run `make test`, which sets one up")
    return tree


@pytest.fixture(scope="session")
def comfy_server(comfy_tree: Path, tmp_path_factory: pytest.TempPathFactory):
    """A running server with the pack and the stub engine; its log is out/comfy-server.log."""
    from harness.server import ComfyServer
    from support import OUT, ROOT

    packs = {"ComfyUI-TalkingHead": ROOT, "talkinghead_test_nodes": TESTS / "comfy" / "stub_pack"}
    base = tmp_path_factory.mktemp("comfy-base")
    with ComfyServer(comfy_tree, base, packs, OUT / "comfy-server.log") as server:
        print(f"ComfyUI {server.version} at {server.url}")
        log = server.log.read_text(errors="replace")
        if "IMPORT FAILED" in log:
            # from the first traceback, or the message of an entry point, to the table of import times
            starts = (log.find(word) for word in ("Traceback", "Error while calling", "Cannot import"))
            start = min((at for at in starts if at >= 0), default=0)
            reason = log[start : log.find("Import times")][-3000:]
            pytest.fail(f"the server could not import a pack:\n{reason}", pytrace=False)
        yield server


@pytest.fixture(scope="session")
def client(comfy_server):
    from harness.client import Client

    return Client(comfy_server.url)
