"""Live rendering with MuseTalk: sound in as it arrives, full frames out, through the stages that a graph runs."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ..core.audio import AudioClip
from ..core.cadence import CadenceOptions
from ..core.frames import FrameChunk, RunContext
from ..core.live_audio import ClipSound, LiveAudio
from ..core.packet import AvatarPacket
from ..core.streaming import check_features, check_matrix, in_colours
from ..core.timeline import parse_fps
from .handle import MuseTalkModel
from .live_speech import LiveSpeech
from .render import CompositeStream, CropStream
from .speech import Heard, Speech


def stream_musetalk(
    ctx: RunContext,
    model: MuseTalkModel,
    avatar: AvatarPacket,
    audio: LiveAudio | AudioClip,
    fps: Fraction | int | str = Fraction(25),
    *,
    batch: int = 8,
    mask_mode: str = "mouth",
    seam_mode: str = "feather",
    matrix: str | None = None,
    features: str | None = None,
    first_batch: int | None = None,
    cadence: CadenceOptions | None = None,
) -> Iterator[FrameChunk]:
    """Yield the frames of `avatar` speaking `audio`; see `StreamFrames`.

    At 25 fps a frame hears 80 ms beyond its own end, and the rule "live" 80 ms more (`live_speech`): a chunk of 8 frames
    is begun when 480 ms of its sound have arrived.

    Args:
        fps: as `timeline.parse_fps` takes it: 25, "29.97", Fraction(30000, 1001).
        first_batch: live features only: frames of the first chunk, 1 to `batch`; None for `batch`. 2 are begun after
            240 ms of sound, which helps where sound arrives faster than it plays (text to speech) and nowhere else: the
            second chunk needs as much sound as ever.
        cadence: which frames are drawn, and whether the mouth rests in silence; None draws every frame. Live, a chunk
            whose last frame lies between two keys waits for the key behind it, 1 or 2 frames more. Planning needs the
            sound of 3 frames more, which delays nothing from 20 fps on.

    Raises:
        ValueError: at the call: an avatar of another model, a value out of range, NV12 of odd sides.
    """
    fps = parse_fps(fps)
    check_matrix(matrix)
    speech = _heard(model, audio, fps, features, first_batch)
    if first_batch is not None and not 1 <= first_batch <= batch:
        raise ValueError(f"first_batch {first_batch} is outside 1..{batch}, the batch")
    crops = CropStream(model, avatar, speech, batch, cadence)
    frames = CompositeStream(crops, avatar, mask_mode, seam_mode)
    return in_colours(frames, matrix, avatar).chunks(ctx, batch)


def _heard(
    model: MuseTalkModel,
    audio: LiveAudio | AudioClip,
    fps: Fraction,
    features: str | None,
    first_batch: int | None,
) -> Heard:
    if check_features(audio, features) == "live":
        sound = audio if isinstance(audio, LiveAudio) else ClipSound(audio)
        return LiveSpeech(model, sound, fps, first_batch)
    if first_batch is not None:
        raise ValueError("first_batch goes with features 'live'")
    return Speech(model, audio, fps)
