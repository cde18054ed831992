"""Nodes that both engines use: avatars, speech features, putting crops back."""

from __future__ import annotations

from comfy_api.latest import io

from .avatars.composite import composite_stream
from .avatars.engines import hear
from .avatars.names import demo_ids
from .avatars.presenters import resolve_avatar
from .comfy_nodes import Avatar, ComfyContext, Frames, Speech, any_model_input, model_folders
from .core.audio import from_comfy
from .core.blend import MASK_MODES, SEAM_MODES
from .core.packet import PacketError, list_packets
from .core.timeline import parse_fps


def avatar_names() -> list[str]:
    """Return the demos and every packet in the avatars folders."""
    try:
        built = [p.name for p in list_packets(model_folders("avatars"))]
    except PacketError:  # a file stands where the folder should be; building and loading say so
        built = []
    return [*demo_ids(), *(n for n in built if n not in demo_ids())]


class LoadAvatar(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadLoadAvatar",
            display_name="Load Avatar",
            category="Talking Head/avatar",
            description=(
                "Opens a presenter that was built before, or one of the demos that come with the pack. "
                "To make one from your own picture use Build Avatar."
            ),
            inputs=[
                io.Combo.Input(
                    "avatar",
                    options=avatar_names(),
                    tooltip="A demo (built on first use, a few seconds) or a folder of models/talkinghead/avatars.",
                )
            ],
            outputs=[Avatar.Output("AVATAR", display_name="avatar")],
        )

    @classmethod
    def fingerprint_inputs(cls, avatar: str) -> str:
        if avatar in demo_ids():
            return avatar  # its first use builds it, which must not look like a change
        # By content: a packet rebuilt under the same name must not be served from the cache.
        for path in list_packets(model_folders("avatars")):
            if path.name == avatar:
                stat = (path / "packet.json").stat()
                return f"{path} {stat.st_mtime_ns} {stat.st_size}"
        return avatar

    @classmethod
    def execute(cls, avatar: str) -> io.NodeOutput:
        return io.NodeOutput(resolve_avatar(ComfyContext(), avatar, model_folders("avatars")))


class SpeechFeatures(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadSpeechFeatures",
            display_name="Speech Features",
            category="Talking Head/speech",
            description=(
                "Says what the presenter hears in every video frame: audio, frame rate and the model that listens. "
                "The work itself happens while the video is written, 30 s of audio at a time."
            ),
            inputs=[
                any_model_input("The model whose speech encoder listens; the one that renders."),
                io.Audio.Input(
                    "audio", tooltip="Speech of any rate and channel count; channels are averaged."
                ),
                io.String.Input(
                    "fps",
                    default="25",
                    tooltip=(
                        "Frames a second of the video, exact: 25, 30, 29.97, 23.976, 59.94 or N/D. "
                        "25 is what the engines were trained at; Ditto's motion is made at 25 and brought to any other rate."
                    ),
                ),
            ],
            outputs=[Speech.Output("SPEECH", display_name="speech")],
        )

    @classmethod
    def validate_inputs(cls, fps: str) -> bool | str:
        return _message(parse_fps, fps)

    @classmethod
    def execute(cls, model: object, audio: dict, fps: str) -> io.NodeOutput:
        return io.NodeOutput(hear(model, from_comfy(audio), parse_fps(fps)))


class Composite(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadComposite",
            display_name="Composite",
            category="Talking Head/video",
            description=(
                "Puts rendered face crops back into the avatar's frames. Pixels outside the mask keep the "
                "avatar's exact values."
            ),
            inputs=[
                Frames.Input("crops", tooltip="Face crops from a Render node."),
                Avatar.Input("avatar", tooltip="The avatar that the crops were rendered for."),
                io.Combo.Input(
                    "mask_mode",
                    options=list(MASK_MODES),
                    default=MASK_MODES[0],
                    tooltip=(
                        "mouth: the mask the avatar was built with. lower half: all below the nose, to see what the "
                        "network draws. mouth only: lips alone, never nostrils. lower face: lips and chin."
                    ),
                ),
                io.Combo.Input(
                    "seam_mode",
                    options=list(SEAM_MODES),
                    default=SEAM_MODES[0],
                    tooltip=(
                        "feather: the mask fades out softly. none: a hard edge, for inspection. colour match: the face "
                        "first takes the colours of the skin around it."
                    ),
                ),
            ],
            outputs=[Frames.Output("FRAMES", display_name="frames")],
        )

    @classmethod
    def execute(cls, crops: object, avatar: object, mask_mode: str, seam_mode: str) -> io.NodeOutput:
        return io.NodeOutput(composite_stream(crops, avatar, mask_mode, seam_mode))


def _message(check, value: object) -> bool | str:
    try:
        check(value)
    except ValueError as e:
        return str(e)
    return True


NODES = [LoadAvatar, SpeechFeatures, Composite]
