"""Where the pack's files live. Core takes roots and never asks ComfyUI for them; nodes pass theirs."""

from __future__ import annotations

import os
from pathlib import Path


def cli_model_root(given: str | None = None) -> Path:
    """Return the models folder of the command line.

    `given` (--models), else $TALKINGHEAD_MODELS, else $COMFYUI_DIR/models/talkinghead, else
    ~/.cache/talkinghead.
    """
    if given:
        return Path(given).expanduser()
    if own := os.environ.get("TALKINGHEAD_MODELS"):
        return Path(own).expanduser()
    if comfy := os.environ.get("COMFYUI_DIR"):
        return Path(comfy).expanduser() / "models" / "talkinghead"
    return Path.home() / ".cache" / "talkinghead"
