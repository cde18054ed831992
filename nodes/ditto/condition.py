"""What conditions a frame of motion: [speech | emotion 8 | eye openness 2 | eye balls 6 | face shape].

Rows are float32, one per frame of 25 fps. The frame number is given with every call, so a row does not depend on how the
frames were chunked; before frame 0 (the warm-up of a stream) everything is that of frame 0. Source: spec/ditto.md 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core.host_copy import upload
from ..core.timeline import cycle_indices

EMOTIONS = ("angry", "disgust", "fear", "happy", "neutral", "sad", "surprise", "contempt")
NEUTRAL = EMOTIONS.index("neutral")
_LOGIT = 8.0
"""A chosen label weighs e^8 times as much as each of the others."""

Emotion = int | Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Tensor


def emotion_row(labels: Sequence[int]) -> Tensor:
    """Return the weights of the eight emotions, float32 (8,), for one label or an even mix of several.

    Raises:
        ValueError: no label, one twice, all eight, or one that is not a whole number in 0..7.
    """
    names = ", ".join(f"{i} {name}" for i, name in enumerate(EMOTIONS))
    for label in labels:
        if (
            isinstance(label, bool)
            or not isinstance(label, (int, np.integer))
            or not 0 <= label < len(EMOTIONS)
        ):
            raise ValueError(f"emotion {label!r:.40} is not one of {names}")
    if not 1 <= len(set(labels)) == len(labels) < len(EMOTIONS):
        raise ValueError(f"emotions {list(labels)!r:.80}: give one to seven different ones of {names}")
    logits = torch.zeros(len(EMOTIONS))
    logits[[int(label) for label in labels]] = _LOGIT
    return logits.softmax(dim=0)


def emotion_rows(emotion: Emotion) -> Tensor:
    """Return float32 (m, 8), one row a frame, repeated from the start where the motion is longer.

    Args:
        emotion: a label 0..7 (order of EMOTIONS), a list of labels (their even mix), a list of lists (one mix a frame), or
            an array (m, 8) of weights.

    Raises:
        ValueError: none of these.
    """
    if isinstance(emotion, (np.ndarray, Tensor)):
        rows = torch.as_tensor(emotion).to("cpu", torch.float32)
        if (
            rows.ndim != 2
            or rows.shape[1] != len(EMOTIONS)
            or not len(rows)
            or not bool(rows.isfinite().all())
        ):
            raise ValueError(
                f"emotion weights are {tuple(rows.shape)}: give finite numbers (frames, {len(EMOTIONS)}), one frame or more"
            )
        return rows
    if isinstance(emotion, (int, np.integer)):
        return emotion_row([emotion])[None]
    if isinstance(emotion, Sequence) and not isinstance(emotion, str) and len(emotion):
        if all(isinstance(entry, Sequence) and not isinstance(entry, str) for entry in emotion):
            return torch.stack([emotion_row(labels) for labels in emotion])
        return emotion_row(emotion)[None]
    raise ValueError(
        f"emotion {emotion!r:.80}: give a label 0..7, a list of labels, a list of lists, or an array (frames, 8)"
    )


def mixed_emotion(weights: Mapping[str, float]) -> Tensor:
    """Return (1, 8): the rows of the named emotions, mixed by their weights (any scale, 0 or more, not all 0)."""
    unknown = [name for name in weights if name not in EMOTIONS]
    total = sum(weights.values())
    if unknown or not all(w >= 0 for w in weights.values()) or not 0 < total < float("inf"):
        raise ValueError(
            f"emotion weights {dict(weights)!r:.120}: give 0 or more to some of {', '.join(EMOTIONS)}, and above 0 to one"
        )
    return sum(emotion_row([EMOTIONS.index(name)]) * (w / total) for name, w in weights.items())[None]


@dataclass(frozen=True, eq=False)
class FaceShape:
    """What the condition takes of a face: of the avatar, or of a reference character in its place.

    eye_open (n, 2) and eye_ball (n, 6), left eye first, one row for each frame of the source; keypoints (3 k,), the
    canonical key points of its first frame, x y z of each.
    """

    eye_open: Tensor
    eye_ball: Tensor
    keypoints: Tensor

    def __post_init__(self) -> None:
        for name in ("eye_open", "eye_ball", "keypoints"):
            value = torch.as_tensor(getattr(self, name)).to("cpu", torch.float32)
            object.__setattr__(self, name, value.flatten() if name == "keypoints" else value)
        n = len(self.eye_open)
        if n < 1 or self.eye_open.shape != (n, 2) or self.eye_ball.shape != (n, 6):
            raise ValueError(
                f"eyes are {tuple(self.eye_open.shape)} open and {tuple(self.eye_ball.shape)} balls: give (n, 2) and (n, 6), "
                f"a row for each of the source's n >= 1 frames"
            )


@dataclass(frozen=True, eq=False)
class Condition:
    """Makes the rows.

    face: whose eyes and shape. emotion: see `emotion_rows`. fixed_eyes: keep the eyes of the source's first frame
    instead of playing those of all. eyes_at: (first, count) of frames from 0 on -> which rows of the eyes they show,
    (count,); None: forward and backward, as upstream. hold_emotion: after its last row an emotion stays instead of
    starting anew. use_emotion, use_eye_open, use_eye_ball, use_shape: parts that the
    network was trained with; one left out makes the row shorter.
    """

    face: FaceShape
    emotion: Emotion = NEUTRAL
    fixed_eyes: bool = False
    eyes_at: Callable[[int, int], np.ndarray] | None = None
    hold_emotion: bool = False
    use_emotion: bool = True
    use_eye_open: bool = True
    use_eye_ball: bool = True
    use_shape: bool = True
    _emotion_rows: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_emotion_rows", emotion_rows(self.emotion))

    @property
    def extra(self) -> int:
        """Columns behind the speech."""
        parts = (len(EMOTIONS), 2, 6, len(self.face.keypoints))
        used = (self.use_emotion, self.use_eye_open, self.use_eye_ball, self.use_shape)
        return sum(size for size, use in zip(parts, used, strict=True) if use)

    def rows(self, speech: Tensor, start: int) -> Tensor:
        """Return the condition of the frames `start`, `start` + 1, ...

        Args:
            speech: (k, width) rows of the speech encoder.
            start: number of the first frame, negative in a warm-up.

        Returns:
            float32 (k, width + extra) on the device of the speech.
        """
        speech = speech.to(torch.float32)
        frames = np.maximum(np.arange(start, start + len(speech)), 0)
        parts = [torch.zeros(len(speech), 0)]
        if self.use_emotion:
            rows = len(self._emotion_rows)
            shown = np.minimum(frames, rows - 1) if self.hold_emotion else frames % rows
            parts.append(self._emotion_rows[torch.from_numpy(shown)])
        eyes = torch.from_numpy(self._eye_rows(frames))
        if self.use_eye_open:
            parts.append(self.face.eye_open[eyes])
        if self.use_eye_ball:
            parts.append(self.face.eye_ball[eyes])
        if self.use_shape:
            parts.append(self.face.keypoints.expand(len(speech), -1))
        return torch.cat([speech, upload(torch.cat(parts, dim=1), speech.device)], dim=1)

    def _eye_rows(self, frames: np.ndarray) -> np.ndarray:
        if self.fixed_eyes or not len(frames):
            return np.zeros_like(frames)
        first, last = int(frames[0]), int(frames[-1])
        count = last - first + 1
        if self.eyes_at is not None:
            return self.eyes_at(first, count)[frames - first]
        return cycle_indices(first, count, len(self.face.eye_open), "pingpong")[frames - first]
