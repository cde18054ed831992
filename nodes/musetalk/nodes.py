"""MuseTalk nodes: loader and render."""

from __future__ import annotations

from comfy_api.latest import io

from ..comfy_nodes import (
    Avatar,
    Cadence,
    Frames,
    ModelLoader,
    Speech,
    backend_input,
    checkpoint_names,
    search_roots,
)
from ..comfy_nodes import MuseTalkModel as ModelSocket
from .handle import PRECISIONS, MuseTalkModel, available, describe
from .render import MAX_BATCH, CropStream


class MuseTalkLoader(ModelLoader):
    handle = MuseTalkModel

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadMuseTalkLoader",
            display_name="MuseTalk Loader",
            category="Talking Head/MuseTalk",
            description=(
                "Chooses the MuseTalk weights. The embedded ones are small, come with the pack and run on any CPU, but "
                "are made for the demo presenters; for photographs and clips use musetalk-1.5."
            ),
            inputs=[
                io.Combo.Input(
                    "checkpoint",
                    options=checkpoint_names(available(tuple(search_roots()))),
                    tooltip=(
                        "embedded comes with the pack, musetalk-1.5 draws real faces, other names are folders of "
                        f"fine-tunes. On this machine:\n{describe(tuple(search_roots()))}"
                    ),
                ),
                io.Combo.Input(
                    "precision",
                    options=list(PRECISIONS),
                    tooltip=(
                        "fp32 is exact and the fastest on CPUs; fp16 halves the memory of a GPU and is faster there. fp8 "
                        "is fp16 with the layers in fp8 that keep the pictures within 45 dB of fp32 (Hopper or newer)."
                    ),
                ),
                backend_input(),
            ],
            outputs=[ModelSocket.Output("MODEL", display_name="model")],
        )


class MuseTalkRender(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadMuseTalkRender",
            display_name="MuseTalk Render",
            category="Talking Head/MuseTalk",
            description=(
                "Draws the speaking face crop of every video frame. Lazy: the work happens in Write Video or "
                "Frames to Images. Connect Composite behind it to get full frames."
            ),
            inputs=[
                ModelSocket.Input("model", tooltip="From MuseTalk Loader."),
                Avatar.Input("avatar", tooltip="Built with the same model."),
                Speech.Input("speech", tooltip="From Speech Features, with the same model."),
                io.Int.Input(
                    "batch",
                    default=8,
                    min=1,
                    max=MAX_BATCH,
                    tooltip="Frames the network runs at once. 8 is best on CPUs; more needs more memory.",
                ),
                Cadence.Input(
                    "cadence",
                    optional=True,
                    tooltip="From Cadence: fewer frames drawn, rest in silence. Without it every frame is drawn.",
                ),
            ],
            outputs=[Frames.Output("CROPS", display_name="crops")],
        )

    @classmethod
    def execute(
        cls, model: object, avatar: object, speech: object, batch: int, cadence: object = None
    ) -> io.NodeOutput:
        return io.NodeOutput(CropStream(model, avatar, speech, batch, cadence))


NODES = [MuseTalkLoader, MuseTalkRender]
