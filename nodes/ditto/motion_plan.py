"""MOTION: how an avatar moves to a speech, as a recipe that is made while it is pulled.

    speech rows | diffusion, 25 fps, kept by content | smoothing | poses at the video's rate | edits | key points

Nothing is held but the recipe: pulling it again gives the same frames, in batches of any size, in memory that does not
depend on the length. Motion that was made before comes from `motion_cache`: smoothing, edits, cadence and frame rate lie behind
it and do not make it again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from torch import Tensor

from ..avatars.build import check_engine
from ..core.cadence import Cadence, CadenceOptions
from ..core.frames import RunContext
from ..core.packet import AvatarPacket
from .audio2motion import OFFLINE_OVERLAP, ONLINE_OVERLAP, SMOOTH, WINDOW, WindowScheme
from .emotion import emotion_weights
from .handle import DittoModel
from .motion_edit import MotionEdits
from .schedule import DEFAULT_STEPS
from .smooth import ORDER, POSE, PoseSmoother
from .smooth import WINDOW as SMOOTH_WINDOW
from .speech import Heard

MIN_STEPS, MAX_STEPS = 2, 50


@dataclass(frozen=True)
class MotionOptions:
    """What the diffusion is asked for.

    steps: of the sampler, 2..50; 4 is the articles' choice. eta: 1 draws noise at each step as upstream, 0 is deterministic
    after its first noise; between them a share. seed: of all its noise; the same seed is the same motion on one kind of
    device. emotion: see `emotion.emotion_weights`.
    overlap: frames that windows share, None for 10 of a file and 70 live (there 40 to 79). average: frames of the moving
    average over head pose and scale, 0..80, below 2 for none. fixed_eyes: keep the eyes of the avatar's first frame as what
    the motion is asked to go with, instead of those it shows. as_upstream: average joints twice and the newest frames not
    at all.

    Raises:
        ValueError: out of range.
    """

    steps: int = DEFAULT_STEPS
    eta: float = 1.0
    seed: int = 0
    emotion: str = "neutral"
    overlap: int | None = None
    average: int = SMOOTH
    fixed_eyes: bool = False
    as_upstream: bool = False

    def __post_init__(self) -> None:
        if type(self.steps) is not int or not MIN_STEPS <= self.steps <= MAX_STEPS:
            raise ValueError(
                f"{self.steps!r} steps are outside {MIN_STEPS}..{MAX_STEPS}; {DEFAULT_STEPS} is the default"
            )
        if not isinstance(self.eta, (int, float)) or not 0 <= self.eta <= 1:
            raise ValueError(
                f"eta {self.eta!r} is outside 0..1; 1 is upstream's sampler, 0 the deterministic one"
            )
        if type(self.seed) is not int:
            raise ValueError(f"seed {self.seed!r:.40} is no whole number")
        emotion_weights(self.emotion)
        self.scheme(online=False)

    def scheme(self, online: bool) -> WindowScheme:
        """Return how windows follow each other. ValueError for an overlap that cannot be."""
        given = (ONLINE_OVERLAP if online else OFFLINE_OVERLAP) if self.overlap is None else self.overlap
        if online and given < WINDOW // 2:
            raise ValueError(
                f"overlap {given} is outside {WINDOW // 2}..{WINDOW - 1} for live sound; {ONLINE_OVERLAP} is upstream's"
            )
        kind: dict[str, Any] = {"overlap": given, "smooth": self.average}
        if online:
            # The shipped online settings: each window continues from the source but for its pose.
            kind |= {"online": True, "fix_every": 1, "fix_free": (POSE.start, POSE.stop)}
        return WindowScheme(**kind, upstream_smoothing=self.as_upstream)


@dataclass(frozen=True, eq=False)
class PoseBatch:
    """What the renderer needs of the frames `start`..

    avatar_index: int64 (k,), avatar frame that each shows; on the CPU. kp_source, kp_driving: float32 (k, K, 3) on the run's
    device. usable: bool (k,) on the CPU: false where the avatar frame has no face or the motion is no number.
    """

    start: int
    avatar_index: Tensor
    kp_source: Tensor
    kp_driving: Tensor
    usable: Tensor
    is_last: bool


@dataclass(frozen=True, eq=False)
class Motion:
    """The recipe; what the MOTION socket carries.

    speech: `DittoSpeech`, or a `LiveDittoSpeech`, whose motion can be pulled once if its sound can. smooth: (window, order)
    of a Savitzky-Golay filter on pitch, yaw, roll and translation, None for none.

    Raises:
        ValueError: an avatar of another engine, speech of another model, a window that cannot be.
    """

    model: DittoModel
    avatar: AvatarPacket
    speech: Heard
    options: MotionOptions = field(default_factory=MotionOptions)
    smooth: tuple[int, int] | None = None
    edits: MotionEdits = field(default_factory=MotionEdits)

    def __post_init__(self) -> None:
        check_engine(self.avatar, "ditto")
        if self.speech.model.key != self.model.key:
            raise ValueError(
                "the speech was heard by another model than the motion's; connect one Ditto Loader to both"
            )
        self.options.scheme(self.is_live)
        if self.smooth is not None:
            PoseSmoother(*self.smooth)

    @property
    def fps(self) -> Fraction:
        return self.speech.fps

    @property
    def n_frames(self) -> int | None:
        """None for live sound."""
        return self.speech.n_frames

    @property
    def is_live(self) -> bool:
        return self.speech.n_frames is None

    def with_smoothing(self, window: int = SMOOTH_WINDOW, order: int = ORDER) -> Motion:
        """Return this motion with its rigid pose smoothed; a window of 0 for none."""
        return replace(self, smooth=(window, order) if window else None)

    def with_edits(self, edits: MotionEdits) -> Motion:
        """Return this motion with other edits."""
        return replace(self, edits=edits)

    def keypoints(
        self, ctx: RunContext, n: int, cadence: Cadence | CadenceOptions | None = None
    ) -> Generator[PoseBatch | None, None, None]:
        """Yield every frame in batches of exactly `n` from frame 0, the last one fewer; None before a wait for live sound.

        A live batch is held back until it is known whether a frame follows.

        Args:
            cadence: keys keep their poses, frames between two keys get poses in between; in silence the lips rest. Of a
                `Cadence` the options count; None is every frame as it is, without rest.

        Raises:
            ValueError: n below 1, a cadence of other speech, an avatar that does not fit the model.
        """
        from .motion_run import MotionRun

        if n < 1:
            raise ValueError(f"a batch needs at least one frame, not {n}")
        return MotionRun(ctx, self, self.plan_options(cadence)).batches(n)

    def plan_options(self, cadence: Cadence | CadenceOptions | None) -> CadenceOptions | None:
        """Return what of a cadence counts, None where every frame is as it is. ValueError for that of other speech."""
        if isinstance(cadence, Cadence):
            if self.is_live:
                raise ValueError(
                    "a Cadence is the plan of a whole sound, live speech is planned as it comes; give CadenceOptions"
                )
            cadence.check(self.speech.audio, self.fps)
            cadence = cadence.options
        return None if cadence is None or (cadence.mode == "dense" and not cadence.rest) else cadence
