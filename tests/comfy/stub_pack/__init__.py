"""A custom-node pack for tests only: the stub engine as a node, and a sound to feed it."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import torch
from comfy_api.latest import ComfyExtension, io

TESTS = Path(__file__).resolve().parents[2]


def frames_module():
    """Return core.frames of the pack this server has loaded: a class of another copy would not do."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if Path(file).parts[-3:] == ("nodes", "core", "frames.py") and not name.startswith("talkinghead."):
            return module
    raise RuntimeError("ComfyUI-TalkingHead is not loaded; see the server's log for 'IMPORT FAILED'")


def stub_engine():
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    import stub_engine

    return stub_engine


class TestStubEngine(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TestStubEngine",
            display_name="Stub Engine (test double)",
            category="Talking Head/test",
            inputs=[
                io.Audio.Input("audio"),
                io.String.Input("fps", default="25"),
                io.Int.Input("width", default=128),
                io.Int.Input("height", default=128),
                io.Int.Input("colour", default=0x285AA0, max=0xFFFFFF, tooltip="The avatar: 0xRRGGBB."),
                io.Float.Input("sleep_s", default=0.0, tooltip="Before every chunk."),
                io.Int.Input("fail_at_frame", default=-1, min=-1),
            ],
            outputs=[io.Custom("TALKINGHEAD_FRAMES").Output("FRAMES")],
        )

    @classmethod
    def execute(cls, audio, fps, width, height, colour, sleep_s, fail_at_frame) -> io.NodeOutput:
        stream = stub_engine().stub_stream(
            audio["waveform"][0],
            audio["sample_rate"],
            Fraction(fps),
            (width, height),
            colour=(colour >> 16, colour >> 8 & 255, colour & 255),
            sleep_s=sleep_s,
            fail_at_frame=fail_at_frame,
            frames=frames_module(),
        )
        return io.NodeOutput(stream)


class TestTone(io.ComfyNode):
    """A tone that comes and goes, so that frames differ; its length is exact in samples."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TestTone",
            display_name="Tone (test sound)",
            category="Talking Head/test",
            inputs=[
                io.Int.Input("samples", default=24000, min=1, max=1 << 30),
                io.Int.Input("sample_rate", default=24000, max=192000),
                io.Float.Input("volume", default=0.5),
            ],
            outputs=[io.Audio.Output("AUDIO")],
        )

    @classmethod
    def execute(cls, samples, sample_rate, volume) -> io.NodeOutput:
        t = torch.arange(samples) / sample_rate
        tone = volume * torch.sin(2 * torch.pi * 220 * t) * torch.sin(torch.pi * t).square()
        return io.NodeOutput({"waveform": tone[None, None], "sample_rate": sample_rate})


class TestPassAnything(io.ComfyNode):
    """What the any-type nodes of other packs do to a link's type: it is lost."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TestPassAnything",
            display_name="Pass Anything (test double)",
            category="Talking Head/test",
            inputs=[io.AnyType.Input("anything")],
            outputs=[io.AnyType.Output("ANYTHING")],
        )

    @classmethod
    def execute(cls, anything) -> io.NodeOutput:
        return io.NodeOutput(anything)


class TestExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TestStubEngine, TestTone, TestPassAnything]


async def comfy_entrypoint() -> TestExtension:
    return TestExtension()
