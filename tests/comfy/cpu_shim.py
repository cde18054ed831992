"""Lets the registry's CUDA build of torchvision import beside a CPU build of torch.

`setup_env.py` copies this file into the environment's site-packages together with a one-line .pth file
that imports it. It costs nothing at interpreter start: torch is touched only at torchvision's first import.
"""

import sys

NAME = "talkinghead_torchvision_ops"


class TorchvisionOps:
    """Meta-path hook that declares the operators torchvision registers for, then steps aside."""

    name = NAME

    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        import torch

        if torch.version.cuda is None:
            for op in ("nms", "qnms"):
                try:
                    torch.library.define(
                        f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    )
                except RuntimeError:  # declared already
                    pass
        return None


if not any(getattr(hook, "name", None) == NAME for hook in sys.meta_path):
    sys.meta_path.insert(0, TorchvisionOps())
