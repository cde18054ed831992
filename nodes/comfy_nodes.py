"""What the node files share of ComfyUI: custom types, the run context, folders."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path

import comfy.model_management as mm
import comfy.model_patcher
import comfy.utils
import folder_paths
import torch
from comfy_api.latest import io

from .core.frames import ModelHandle, RunContext

Avatar = io.Custom("TALKINGHEAD_AVATAR")
Speech = io.Custom("TALKINGHEAD_SPEECH")
Frames = io.Custom("TALKINGHEAD_FRAMES")
MuseTalkModel = io.Custom("TALKINGHEAD_MUSETALK_MODEL")

MODELS_KEPT = 2
_ACTIVATION_BYTES = 2 << 30  # rough room for a batch of the full MuseTalk, so that other models make way

_patchers: OrderedDict[Hashable, comfy.model_patcher.ModelPatcher] = OrderedDict()
_lock = threading.Lock()


class ComfyContext(RunContext):
    """A RunContext on ComfyUI's device, progress bar, interrupt flag and model management."""

    def __init__(self) -> None:
        super().__init__(device=mm.get_torch_device(), progress=self._show)
        self._bar: comfy.utils.ProgressBar | None = None

    def load(self, handle: ModelHandle) -> torch.nn.Module:
        with _lock:
            patcher = _patchers.get(handle.key)
            if patcher is None:
                patcher = comfy.model_patcher.ModelPatcher(
                    handle.build(),
                    load_device=mm.get_torch_device(),
                    offload_device=mm.unet_offload_device(),
                )
                _patchers[handle.key] = patcher
            _patchers.move_to_end(handle.key)
            while len(_patchers) > MODELS_KEPT:
                _patchers.popitem(last=False)
        room = 0 if self.device.type == "cpu" else _ACTIVATION_BYTES
        mm.load_models_gpu([patcher], memory_required=room)
        return patcher.model

    def check_cancelled(self) -> None:
        mm.throw_exception_if_processing_interrupted()

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = comfy.utils.ProgressBar(total)
        self._bar.update_absolute(done, total)


def model_folders(kind: str) -> list[Path]:
    """Return the folders of `models/talkinghead/<kind>`, the default first, after extra_model_paths.yaml."""
    key = f"talkinghead_{kind}"
    default = str(Path(folder_paths.models_dir) / "talkinghead" / kind)
    if key not in folder_paths.folder_names_and_paths:
        folder_paths.add_model_folder_path(key, default)
    return [Path(p) for p in folder_paths.get_folder_paths(key)]
