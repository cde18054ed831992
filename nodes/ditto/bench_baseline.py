"""The loop that our figures are compared with: Ditto's rendering as upstream runs it, one frame at a time.

Between the networks everything is a float32 array of numpy on the host: volume and key points go to the card, warped
features come back, go there again, the picture comes back. Then put-back by upstream's rule on the whole frame (mask and
picture warped by OpenCV, blended, cut off), and the frame becomes NV12. Source: spec/ditto.md 1 and 12.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.color import Nv12Encoder, matrix_for_height, nv12_planes
from .networks import DittoNets
from .putback import feather_mask

BASELINE = "baseline"
HALF_WEIGHTS = "baseline, fp16 weights"
COMPILED_BLEND = "baseline, compiled blend"
NETWORKS = "baseline, networks alone"

Blend = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Mask float32 (H, W), picture float32 (H, W, 3), frame uint8 (H, W, 3) -> the frame with the picture in it."""


@dataclass(frozen=True)
class Scene:
    """A frame uint8 (H, W, 3), the map (3, 3) from a face of the networks' size to it, and what a frame's networks get:
    volume (1, C, D, h, w), kp_source and kp_driving (1, K, 3), float32 on the host."""

    frame: np.ndarray
    c2o: np.ndarray
    volume: np.ndarray
    kp_source: np.ndarray
    kp_driving: np.ndarray


class OneFrameLoop:
    """A call renders one frame and returns it as NV12 (H*3/2, W), or without `blend` the picture (S, S, 3) in 0..255.

    Args:
        nets: any precision.
        cast: entered around each network, as upstream enters autocast.
    """

    def __init__(
        self,
        nets: DittoNets,
        scene: Scene,
        blend: Blend | None,
        cast: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        self._nets, self._scene, self._blend, self._cast = nets, scene, blend, cast
        side, (height, width) = nets.config.render_size, scene.frame.shape[:2]
        self._mask = feather_mask(side, side)
        self._encoder = Nv12Encoder(width, height, matrix_for_height(height))
        self._nv12 = np.empty((height * 3 // 2, width), np.uint8)

    def __call__(self) -> np.ndarray:
        scene, nets = self._scene, self._nets
        features = self._run(nets.warp, scene.volume, scene.kp_source, scene.kp_driving)
        picture = self._run(nets.decoder, features)
        picture = np.clip(np.transpose(picture[0], (1, 2, 0)), 0, 1) * 255
        return picture if self._blend is None else self._put_back(picture)

    def _run(self, network: torch.nn.Module, *arrays: np.ndarray) -> np.ndarray:
        device, dtype = self._nets.weights_device, self._nets.weights_dtype
        given: list[Tensor] = [torch.from_numpy(array).to(device) for array in arrays]
        with self._cast():
            # The first is the map or volume, the others key points, which stay float32.
            return network(given[0].to(dtype), *given[1:]).float().cpu().numpy()

    def _put_back(self, picture: np.ndarray) -> np.ndarray:
        import cv2

        frame, matrix = self._scene.frame, self._scene.c2o[:2].astype(np.float64)
        size = frame.shape[1], frame.shape[0]
        mask = cv2.warpAffine(self._mask, matrix, size, flags=cv2.INTER_LINEAR).clip(0, 1)
        warped = cv2.warpAffine(np.ascontiguousarray(picture), matrix, size, flags=cv2.INTER_LINEAR)
        self._encoder.convert(self._blend(mask, warped, frame), *nv12_planes(self._nv12))
        return self._nv12


def numpy_blend(mask: np.ndarray, picture: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """The rule as upstream's own Python has it."""
    share = mask[..., None]
    return np.clip(share * picture + (1 - share) * frame, 0, 255).astype(np.uint8)


def compiled_blend(mask: np.ndarray, picture: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """In one pass of compiled code, as upstream's Cython does it (there cut off, here rounded)."""
    import cv2

    return cv2.blendLinear(picture, frame.astype(np.float32), mask, 1 - mask).astype(np.uint8)


def baseline_loops(
    nets: DittoNets, exact: DittoNets | None, scene: Scene, precision: str
) -> dict[str, Callable[[], object]]:
    """Return the loops by the name of their row, one frame a call.

    "baseline" is upstream's real shape: float32 weights (`exact`), which autocast casts for every call where `precision` is
    fp16. The others are quicker ways to run the same loop: weights in half precision, as ours are; the blend compiled, with
    those weights; and no put-back at all.
    """
    if precision == "fp32" or exact is None:
        loops = {BASELINE: OneFrameLoop(nets, scene, numpy_blend)}
    else:
        device = nets.weights_device.type
        dtype = torch.float16 if device == "cuda" else torch.bfloat16  # the CPU's autocast has no other
        cast = lambda: torch.autocast(device, dtype)  # noqa: E731
        loops = {
            BASELINE: OneFrameLoop(exact, scene, numpy_blend, cast),
            HALF_WEIGHTS: OneFrameLoop(nets, scene, numpy_blend),
        }
    return loops | {
        COMPILED_BLEND: OneFrameLoop(nets, scene, compiled_blend),
        NETWORKS: OneFrameLoop(nets, scene, None),
    }
