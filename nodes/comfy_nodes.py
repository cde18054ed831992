"""What the node files share of ComfyUI: custom types, the run context, folders."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import comfy.model_management as mm
import comfy.model_patcher
import comfy.utils
import folder_paths
import torch
from comfy.patcher_extension import CallbacksMP
from comfy_api.latest import io

from .core.checkpoints import CheckpointState
from .core.engine_shelf import EngineShelf
from .core.frames import ModelHandle, RunContext
from .core.packet import AvatarPacket
from .core.pool import AvatarPool, Resident

Avatar = io.Custom("TALKINGHEAD_AVATAR")
Speech = io.Custom("TALKINGHEAD_SPEECH")
Cadence = io.Custom("TALKINGHEAD_CADENCE")
Frames = io.Custom("TALKINGHEAD_FRAMES")
MuseTalkModel = io.Custom("TALKINGHEAD_MUSETALK_MODEL")
DittoModel = io.Custom("TALKINGHEAD_DITTO_MODEL")
AnyModel = io.Custom(f"{MuseTalkModel.io_type},{DittoModel.io_type}")
"""An output of this type may be connected to what takes either."""
Motion = io.Custom("TALKINGHEAD_MOTION")
AvatarOptionsSocket = io.Custom("TALKINGHEAD_AVATAR_OPTIONS")
DittoAvatarOptionsSocket = io.Custom("TALKINGHEAD_DITTO_AVATAR_OPTIONS")

NOT_INSTALLED = " (not installed)"
"""What stands behind the name of a checkpoint that lacks files."""
MODELS_KEPT = 2
_ACTIVATION_BYTES = 2 << 30  # rough room for a batch of the full MuseTalk, so that other models make way

AVATAR_POOL = AvatarPool(max_bytes=1 << 30)
"""Avatars stay warm between prompts: 1 GB of latents, eight avatars, ten minutes."""


class EnginePatcher(comfy.model_patcher.ModelPatcher):
    """A model with the engines that run it: ComfyUI counts and frees both as one.

    A captured graph holds the addresses of the weights, so they never move while an engine is open: the engines are
    closed first, after the batch they are at, and nobody gets them anew before the weights have arrived. A live session
    may be in a batch when a prompt wants the memory.
    """

    def __init__(self, *args, **kwargs) -> None:
        self.engines = EngineShelf()
        # Also detached at exit, when this module's globals are gone.
        self._moving = _models_lock
        super().__init__(*args, **kwargs)

    def model_size(self) -> int:
        return super().model_size() + self.engines.memory_bytes

    def loaded_size(self) -> int:
        return super().loaded_size() + self.engines.memory_bytes

    def partially_unload(self, device_to, memory_to_free=0, *args, **kwargs) -> int:
        with self._moving:
            freed = self.engines.memory_bytes
            self.engines.close()
            if freed and freed >= memory_to_free:
                return freed
            return freed + super().partially_unload(device_to, memory_to_free - freed, *args, **kwargs)

    def detach(self, unpatch_all=True):
        with self._moving:
            if unpatch_all:
                self.engines.close()
            return super().detach(unpatch_all)


_patchers: OrderedDict[Hashable, EnginePatcher] = OrderedDict()
_lock = threading.Lock()
_models_lock = threading.RLock()
"""ComfyUI's model management knows no threads: one for all runs of the process."""


class ComfyContext(RunContext):
    """A RunContext on ComfyUI's device, progress bar, interrupt flag and model management."""

    def __init__(self) -> None:
        super().__init__(
            device=mm.get_torch_device(), progress=self._show, engine_cache=model_folders("engines")[0]
        )
        self._bar: comfy.utils.ProgressBar | None = None

    def using_models(self) -> AbstractContextManager:
        return _models_lock

    def load(self, handle: ModelHandle) -> torch.nn.Module:
        with self.using_models():
            patcher = self._patcher(handle)
            # What open engines hold already is the room of a batch.
            room = (
                0 if self.device.type == "cpu" else max(0, _ACTIVATION_BYTES - patcher.engines.memory_bytes)
            )
            mm.load_models_gpu([patcher], memory_required=room)
            return patcher.model

    def _patcher(self, handle: ModelHandle) -> EnginePatcher:
        with _lock:
            patcher = _patchers.get(handle.key)
            if patcher is None:
                patcher = EnginePatcher(
                    handle.build(),
                    load_device=mm.get_torch_device(),
                    offload_device=mm.unet_offload_device(),
                )
                # What unloads the model, ComfyUI's own button too, also gives back the engines and avatars made for it.
                patcher.add_callback(CallbacksMP.ON_DETACH, partial(_give_back, AVATAR_POOL))
                _patchers[handle.key] = patcher
            _patchers.move_to_end(handle.key)
            while len(_patchers) > MODELS_KEPT:
                _patchers.popitem(last=False)[1].engines.close()
        return patcher

    def _shelf(self, handle: ModelHandle) -> EngineShelf:
        return self._patcher(handle).engines

    def close_engines(self) -> None:
        for patcher in list(_patchers.values()):
            patcher.engines.close()

    def use_avatar(self, packet: AvatarPacket) -> AbstractContextManager[Resident]:
        return AVATAR_POOL.use(packet, self.device)

    def release_avatars(self) -> None:
        AVATAR_POOL.flush()

    def raise_if_cancelled(self) -> None:
        mm.throw_exception_if_processing_interrupted()

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = comfy.utils.ProgressBar(total)
        self._bar.update_absolute(done, total)


def checkpoint_names(states: Iterable[CheckpointState]) -> list[str]:
    """Return what a loader's combo shows: every checkpoint, one that lacks files marked as such."""
    return [s.name if s.ready else s.name + NOT_INSTALLED for s in states]


def any_model_input(tooltip: str) -> io.MultiType.Input:
    """Return the socket `model` that takes the model of either engine."""
    return io.MultiType.Input("model", [MuseTalkModel, DittoModel], tooltip=tooltip)


def model_folders(kind: str) -> list[Path]:
    """Return the folders of `models/talkinghead/<kind>`, the default first, after extra_model_paths.yaml."""
    key = f"talkinghead_{kind}"
    default = str(Path(folder_paths.models_dir) / "talkinghead" / kind)
    if key not in folder_paths.folder_names_and_paths:
        folder_paths.add_model_folder_path(key, default)
    return [Path(p) for p in folder_paths.get_folder_paths(key)]


def search_roots() -> list[Path]:
    """Return the roots for `core.models.find_file`: the pack's own, ComfyUI's models folder, those of extra paths."""
    models = Path(folder_paths.models_dir)
    own = [folder.parent for kind in ("musetalk", "ditto", "faces") for folder in model_folders(kind)]
    vae = [Path(folder) for folder in folder_paths.get_folder_paths("vae")]
    return list(dict.fromkeys([models / "talkinghead", *own, models, *(v.parent for v in vae), *vae]))


def input_names(suffixes: tuple[str, ...]) -> list[str]:
    """Return what a file widget offers of ComfyUI's input folder and its subfolders, with forward slashes.

    Files with one of `suffixes`, and folders that hold files; without suffixes only the folders.
    """
    root = Path(folder_paths.get_input_directory())
    names = []
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        shown = path.relative_to(root)
        if any(part.startswith(".") for part in shown.parts):
            continue
        if path.is_dir() or path.suffix.lower() in suffixes:
            names.append(shown.as_posix())
    return names


def input_path(name: str) -> Path:
    """Return the file or folder `name` of the input folder.

    ValueError if it is not there or lies outside; so does a folder that holds a link out of the input folder.
    """
    root = Path(folder_paths.get_input_directory()).resolve()
    try:
        path = (root / name).resolve()
        known = bool(name) and path.is_relative_to(root) and path.exists()
    except (OSError, ValueError):  # a name no file can have
        known = False
    if not known:
        raise ValueError(
            f"no file or folder {name!r} in ComfyUI's input folder {root} (links out of it are not followed); "
            "put it there first"
        )
    for entry in path.rglob("*") if path.is_dir() else ():
        if entry.is_symlink() and not entry.resolve().is_relative_to(root):
            raise ValueError(
                f"{name!r} holds {entry.name}, a link out of ComfyUI's input folder; copy the file there"
            )
    return path


def input_stamp(name: str) -> str:
    """Return what changes when the file, or a file of the folder, changes: names, sizes, times."""
    try:
        path = input_path(name)
    except ValueError:
        return "missing"
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    return " ".join(f"{p.name} {p.stat().st_mtime_ns} {p.stat().st_size}" for p in files)


def _give_back(pool: AvatarPool, patcher: EnginePatcher, unpatch_all: bool) -> None:
    # False: ComfyUI only hands the weights over to a fresh handle of the same model, as it does at every load.
    # The pool is an argument because patchers also detach at exit, when this module's globals are gone.
    if unpatch_all:
        patcher.engines.close()
        pool.flush()
