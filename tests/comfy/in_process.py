"""ComfyUI and the pack inside this process, without a server: for node tests and for what an import costs."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def boot(tree: Path, base: Path) -> None:
    """Import ComfyUI from `tree` on the CPU, with models, input, output and temp below `base`.

    The tree goes to the front of sys.path, as under its own main.py. For one tree a process.
    """
    sys.path.insert(0, str(tree))
    from comfy.cli_args import args

    args.cpu = True
    args.base_directory = str(base)
    for folder in ("models", "input", "output", "temp", "user", "custom_nodes"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    # What a server has imported long before it comes to custom nodes.
    for module in ("nodes", "aiohttp.web", "comfy_extras.nodes_audio", "comfy_extras.nodes_video"):
        importlib.import_module(module)
    found = Path(sys.modules["nodes"].__file__).resolve().parent
    if found != tree.resolve():
        raise RuntimeError(f"`import nodes` found {found}, not ComfyUI's own in {tree}")


def load_pack(folder: Path) -> ModuleType:
    """Execute a pack's __init__.py under the name that ComfyUI gives it: its path, dots replaced."""
    name = str(folder).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def node_classes(pack: ModuleType) -> dict[str, type]:
    """Return node id -> V3 class of a loaded pack, schemas checked as ComfyUI checks them."""

    async def ask() -> list[type]:
        entry = pack.comfy_entrypoint()
        extension = await entry if asyncio.iscoroutine(entry) else entry
        return await extension.get_node_list()

    return {cls.GET_SCHEMA().node_id: cls for cls in asyncio.run(ask())}
