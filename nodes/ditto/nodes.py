"""Ditto nodes: loader, motion, smoothing, editing, render."""

from __future__ import annotations

from dataclasses import replace

import torch
from comfy_api.latest import io

from ..comfy_nodes import (
    NOT_INSTALLED,
    Avatar,
    Cadence,
    ComfyContext,
    Frames,
    Speech,
    checkpoint_names,
    search_roots,
)
from ..comfy_nodes import DittoModel as ModelSocket
from ..comfy_nodes import Motion as MotionSocket
from ..core.engine_backends import AUTO, BACKEND_CHOICES
from .condition import EMOTIONS
from .emotion import emotion_weights
from .handle import PRECISIONS, DittoModel, available, describe
from .motion_edit import BLINKS, MAX_GAZE, MAX_RATE, MIN_RATE
from .motion_picture import draw_motion
from .motion_plan import MAX_STEPS, MIN_STEPS, Motion, MotionOptions
from .render import MAX_BATCH, DittoCropStream
from .schedule import DEFAULT_STEPS
from .smooth import ORDER, WINDOW
from .volumes import MEMORY_MODES

SAMPLERS = ("upstream", "deterministic")
_EMOTION = (
    f"One of {', '.join(EMOTIONS)}; a mix such as happy 0.7, surprise 0.3; or a change over time such as 0 s neutral; "
    "2.5 s happy. Upstream's users find its effect small."
)


class DittoLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        roots = tuple(search_roots())
        return io.Schema(
            node_id="TalkingHeadDittoLoader",
            display_name="Ditto Loader",
            category="Talking Head/Ditto",
            description=(
                "Chooses the Ditto weights, which move the whole head. The embedded ones are small, come with the pack "
                "and run on any CPU, but are made for the demo presenters; for photographs and clips use ditto."
            ),
            inputs=[
                io.Combo.Input(
                    "checkpoint",
                    options=checkpoint_names(available(roots)),
                    tooltip=(
                        "embedded comes with the pack, ditto draws real faces (2.2 GB to download, and onnxruntime). On "
                        f"this machine:\n{describe(roots)}"
                    ),
                ),
                io.Combo.Input(
                    "precision",
                    options=list(PRECISIONS),
                    tooltip=(
                        "Of the picture networks: fp32 is exact and the fastest on CPUs, fp16 halves their memory on a GPU "
                        "and is faster there. Speech and motion are fp32 always: in halves the mouth would stay shut."
                    ),
                ),
                io.Combo.Input(
                    "backend",
                    options=list(BACKEND_CHOICES),
                    default=AUTO,
                    tooltip=(
                        "What runs the networks. auto takes the fastest that is ready: tensorrt and inductor once the "
                        "Engine node has built them, else a CUDA graph, on a CPU plain torch. A name starts there and "
                        "builds it if need be, which takes minutes; the report says what ran and why."
                    ),
                ),
            ],
            outputs=[ModelSocket.Output("MODEL", display_name="model")],
        )

    @classmethod
    def validate_inputs(cls, checkpoint: str) -> bool | str:
        try:
            _handle(checkpoint, PRECISIONS[0], AUTO)
        except ValueError as e:
            return str(e)
        return True

    @classmethod
    def fingerprint_inputs(cls, checkpoint: str, precision: str, backend: str = AUTO) -> str:
        try:
            return f"{_handle(checkpoint, precision, backend).key} {backend}"
        except ValueError:
            return "missing"

    @classmethod
    def execute(cls, checkpoint: str, precision: str, backend: str = AUTO) -> io.NodeOutput:
        return io.NodeOutput(_handle(checkpoint, precision, backend))


def _handle(checkpoint: str, precision: str, backend: str) -> DittoModel:
    return DittoModel(checkpoint.removesuffix(NOT_INSTALLED), precision, tuple(search_roots()), backend)


class DittoMotion(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadDittoMotion",
            display_name="Ditto Motion",
            category="Talking Head/Ditto",
            description=(
                "Makes how head, eyes and lips move to the speech: a diffusion over windows of 80 frames. The motion is "
                "kept by its sound and its settings, so smoothing, edits and a second render do not make it again."
            ),
            inputs=[
                Avatar.Input(
                    "avatar", tooltip="The Ditto avatar that will move; motion starts from its pose."
                ),
                Speech.Input(
                    "speech", tooltip="From Speech Features, with the Ditto model that will render."
                ),
                io.Int.Input(
                    "steps",
                    default=DEFAULT_STEPS,
                    min=MIN_STEPS,
                    max=MAX_STEPS,
                    tooltip=(
                        "Steps of the diffusion. 4 is close to 50 and takes a twelfth of its time; more is smoother in "
                        "rare cases only."
                    ),
                ),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=0xFFFFFFFF,
                    tooltip="Another number, another way of moving the head. The same gives the same motion again.",
                ),
                io.String.Input("emotion", default="neutral", tooltip=_EMOTION),
                io.Combo.Input(
                    "sampler",
                    options=list(SAMPLERS),
                    default=SAMPLERS[0],
                    tooltip=(
                        "upstream draws noise at each step, as Ditto's own code (eta 1). deterministic has only its first "
                        "noise (eta 0): a little calmer."
                    ),
                ),
            ],
            outputs=[
                MotionSocket.Output("MOTION", display_name="motion"),
                io.Image.Output("PICTURE", display_name="picture"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def validate_inputs(cls, emotion: str) -> bool | str:
        return _emotion_problem(emotion)

    @classmethod
    def execute(
        cls, avatar: object, speech: object, steps: int, seed: int, emotion: str, sampler: str
    ) -> io.NodeOutput:
        options = MotionOptions(steps, float(sampler == SAMPLERS[0]), seed, emotion)
        return _shown(Motion(_own_model(speech), avatar, speech, options))


class DittoMotionSmooth(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadDittoMotionSmooth",
            display_name="Ditto Motion Smooth",
            category="Talking Head/Ditto",
            description=(
                "Takes the tremble out of the head: a Savitzky-Golay filter on pitch, yaw, roll and translation. Lips and "
                "eyes pass untouched, a plosive closes the lips for two frames only."
            ),
            inputs=[
                MotionSocket.Input("motion", tooltip="From Ditto Motion."),
                io.Int.Input(
                    "window",
                    default=WINDOW,
                    min=0,
                    max=41,
                    tooltip="Frames of 25 a second that are fitted together, odd; 5 is enough as a rule. 0 is off.",
                ),
                io.Int.Input(
                    "order",
                    default=ORDER,
                    min=0,
                    max=5,
                    tooltip="Of the fitted polynomial, below the window. 2 keeps nods as large as they are.",
                ),
            ],
            outputs=[MotionSocket.Output("MOTION", display_name="motion")],
        )

    @classmethod
    def execute(cls, motion: Motion, window: int, order: int) -> io.NodeOutput:
        return io.NodeOutput(motion.with_smoothing(window, order))


class DittoMotionEdit(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        strength = {"default": 0.0, "min": 0.0, "max": 2.0, "step": 0.05}
        gaze = {"default": 0.0, "min": -MAX_GAZE, "max": MAX_GAZE, "step": 0.5}
        return io.Schema(
            node_id="TalkingHeadDittoMotionEdit",
            display_name="Ditto Motion Edit",
            category="Talking Head/Ditto",
            description=(
                "Directs a motion: emotion, head, gaze, blinks, brows. Head and blinks of a clip are exact; gaze, brows and "
                "a still's blinks move single key points by offsets that public editors use."
            ),
            inputs=[
                MotionSocket.Input("motion", tooltip="From Ditto Motion or Ditto Motion Smooth."),
                io.String.Input(
                    "emotion",
                    default="",
                    tooltip=_EMOTION + " Empty keeps what Ditto Motion was given; else the motion is made anew.",
                ),
                io.Float.Input(
                    "head",
                    default=1.0,
                    min=0.0,
                    max=2.0,
                    step=0.05,
                    tooltip="How far the head moves from the avatar's own pose: 1 as it was made, 0 holds it still.",
                ),
                io.Float.Input(
                    "gaze_x", **gaze, tooltip="Degrees the eyes turn, to the right in the picture; 0 as they were made."
                ),
                io.Float.Input("gaze_y", **gaze, tooltip="Degrees the eyes turn up; 0 as they were made."),
                io.Combo.Input(
                    "blink",
                    options=list(BLINKS),
                    default=BLINKS[0],
                    tooltip=(
                        "as made: the eyes are those of the motion (a still) or of the clip. off: open all the time. timed: "
                        "blinks at a rate, at times drawn from the motion's seed."
                    ),
                ),
                io.Float.Input(
                    "blinks_per_minute",
                    default=15.0,
                    min=MIN_RATE,
                    max=MAX_RATE,
                    step=1.0,
                    tooltip="For timed. People who speak blink 15 to 25 times a minute.",
                ),
                io.Float.Input(
                    "brows",
                    **strength,
                    tooltip="How far loudness and pitch of the voice raise and draw the brows; 0 is off, 1 is visible.",
                ),
                io.Float.Input(
                    "squint", **strength, tooltip="How far stressed words narrow the eyes; 0 is off, 1 is visible."
                ),
            ],
            outputs=[
                MotionSocket.Output("MOTION", display_name="motion"),
                io.Image.Output("PICTURE", display_name="picture"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )  # fmt: skip

    @classmethod
    def validate_inputs(cls, emotion: str) -> bool | str:
        return _emotion_problem(emotion)

    @classmethod
    def execute(
        cls, motion: Motion, emotion: str, head: float, gaze_x: float, gaze_y: float, blink: str,
        blinks_per_minute: float, brows: float, squint: float,
    ) -> io.NodeOutput:  # fmt: skip
        if emotion.strip():
            motion = replace(motion, options=replace(motion.options, emotion=emotion))
        edits = replace(
            motion.edits,
            head=head,
            gaze_x=gaze_x,
            gaze_y=gaze_y,
            blink=blink,
            blinks_per_minute=blinks_per_minute,
            blink_seed=motion.options.seed,
            brow_raise=brows,
            brow_furrow=brows,
            squint=squint,
        )
        return _shown(motion.with_edits(edits))


class DittoRender(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadDittoRender",
            display_name="Ditto Render",
            category="Talking Head/Ditto",
            description=(
                "Draws the whole face of every video frame from the avatar's features and the motion. Lazy: the work "
                "happens in Write Video or Frames to Images. Connect Composite behind it to get full frames."
            ),
            inputs=[
                ModelSocket.Input("model", tooltip="From Ditto Loader."),
                Avatar.Input("avatar", tooltip="The avatar that the motion was made for."),
                MotionSocket.Input("motion", tooltip="From Ditto Motion, Smooth or Edit."),
                io.Int.Input(
                    "batch",
                    default=8,
                    min=1,
                    max=MAX_BATCH,
                    tooltip="Frames the network draws at once. 8 is best on CPUs; more needs more memory.",
                ),
                io.Combo.Input(
                    "memory",
                    options=list(MEMORY_MODES),
                    default=MEMORY_MODES[0],
                    tooltip=(
                        "Where the avatar's feature volumes lie, 4 MB a frame of a clip: device keeps all on the card, host "
                        "sends those of a batch over while the one before is drawn, auto takes device where they fit. A "
                        "still is one volume, and a CPU reads them from the file."
                    ),
                ),
                Cadence.Input(
                    "cadence",
                    optional=True,
                    tooltip=(
                        "From Cadence: poses between key frames are interpolated, and in silence the lips rest. Every frame "
                        "is still drawn."
                    ),
                ),
            ],
            outputs=[Frames.Output("CROPS", display_name="crops")],
        )

    @classmethod
    def execute(
        cls, model: object, avatar: object, motion: Motion, batch: int, memory: str, cadence: object = None
    ) -> io.NodeOutput:
        return io.NodeOutput(DittoCropStream(model, avatar, motion, batch, cadence, memory))


def _own_model(speech: object) -> DittoModel:
    if not isinstance(speech.model, DittoModel):
        raise ValueError("this speech was heard by MuseTalk; connect Ditto Loader to Speech Features")
    return speech.model


def _shown(motion: Motion) -> io.NodeOutput:
    ctx = ComfyContext()
    drawn = draw_motion(ctx, motion)
    picture = torch.from_numpy(drawn.picture).float()[None] / 255
    lines = [f"{name}: {low:.1f} to {high:.1f} degrees" for name, (low, high) in drawn.degrees.items()]
    return io.NodeOutput(motion, picture, "\n".join([*lines, *filter(None, [ctx.report.text()])]))


def _emotion_problem(emotion: str | None) -> bool | str:
    """Return True, or what is wrong. A value that comes over a wire is not there yet: None."""
    try:
        if emotion and emotion.strip():
            emotion_weights(emotion)
    except ValueError as e:
        return str(e)
    return True


NODES = [DittoLoader, DittoMotion, DittoMotionSmooth, DittoMotionEdit, DittoRender]
