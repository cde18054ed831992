"""Live rendering with Ditto: sound in as it arrives, full frames out, through the stages that a graph runs."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ..avatars.composite import composite_stream
from ..core.audio import AudioClip
from ..core.cadence import CadenceOptions
from ..core.frames import FrameChunk, RunContext
from ..core.live_audio import ClipSound, LiveAudio
from ..core.packet import AvatarPacket
from ..core.streaming import check_features, check_matrix, in_colours
from ..core.timeline import parse_fps
from .handle import DittoModel
from .live_motion import LiveDittoSpeech
from .motion_edit import MotionEdits
from .motion_plan import Motion, MotionOptions
from .render import DittoCropStream
from .speech import DittoSpeech


def stream_ditto(
    ctx: RunContext,
    model: DittoModel,
    avatar: AvatarPacket,
    audio: LiveAudio | AudioClip,
    fps: Fraction | int | str = Fraction(25),
    *,
    batch: int = 8,
    mask_mode: str = "mouth",
    seam_mode: str = "feather",
    matrix: str | None = None,
    features: str | None = None,
    cadence: CadenceOptions | None = None,
    options: MotionOptions | None = None,
    smooth: tuple[int, int] | None = None,
    edits: MotionEdits | None = None,
    memory: str = "auto",
) -> Iterator[FrameChunk]:
    """Yield the frames of `avatar` speaking `audio`; see `StreamFrames`.

    Live, the motion of 10 frames at 25 fps is known when that of 10 more has been heard: the first chunk of 8 frames is begun
    after 0.885 s of sound.

    Args:
        fps: as `timeline.parse_fps` takes it: 25, "29.97", Fraction(30000, 1001). Motion is made at 25 fps and brought
            there.
        mask_mode, seam_mode: a Ditto face is shown whole, with a soft edge; the defaults alone fit.
        cadence: key frames of the motion, and whether the lips rest in silence; None moves in every frame.
        options: of the diffusion: steps, seed, emotion; see `MotionOptions`.
        smooth: window and order of the filter on the head's pose, None for none; see `Motion`.
        edits: of head, mouth, eyes and brows; see `MotionEdits`.
        memory: where the feature volumes lie; see `volumes.open_volumes`.

    Raises:
        ValueError: at the call: an avatar of another model or engine, a value out of range, NV12 of odd sides.
    """
    fps = parse_fps(fps)
    check_matrix(matrix)
    if check_features(audio, features) == "live":
        sound = audio if isinstance(audio, LiveAudio) else ClipSound(audio)
        speech = LiveDittoSpeech(model, sound, fps)
    else:
        speech = DittoSpeech(model, audio, fps)
    motion = Motion(model, avatar, speech, options or MotionOptions(), smooth, edits or MotionEdits())
    crops = DittoCropStream(model, avatar, motion, batch, cadence, memory)
    frames = composite_stream(crops, avatar, mask_mode, seam_mode)
    return in_colours(frames, matrix, avatar).chunks(ctx, batch)
