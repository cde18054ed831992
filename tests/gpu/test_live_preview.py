"""The preview's figures on a card: the memory that is reserved, the hardware encoder by its name."""

import pytest
import torch
from streams import numbered

from talkinghead.nodes.core.encoders import encoder_problem
from talkinghead.nodes.core.frames import RunContext
from talkinghead.nodes.core.preview import PreviewRun
from talkinghead.nodes.core.video_write import WriteOptions, write_video

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available: the figures of a card"),
]


def watch(tmp_path, codec):
    states, ctx, stream = [], RunContext("cuda"), numbered(60, (256, 256))
    run = PreviewRun(tmp_path, ctx.report, stream.info, states.append)
    write_video(stream, tmp_path / "a.mp4", ctx, None, WriteOptions(codec, "draft", tap=run))
    return states


def test_the_memory_of_the_card_is_among_the_figures(tmp_path):
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    figures = watch(tmp_path, "libx264")[-1]["figures"]
    assert figures["vram_mb"] >= held.numel() >> 20


def test_packets_of_nvenc_are_a_stream_too(tmp_path):
    problem = encoder_problem("h264_nvenc", 256, 256)
    if problem:
        pytest.skip(f"h264_nvenc does not open on this card: {problem}")
    states = watch(tmp_path, "h264_nvenc")
    assert states[-1]["mime"].startswith('video/mp4; codecs="avc1.')
    assert states[-1]["next"] > 0
    assert states[-1]["figures"]["encoder"] == "h264_nvenc"
    assert not states[-1]["problem"]
