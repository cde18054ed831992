"""Frames on their way to the encoder: on a CPU they pass as they are."""

import torch

from talkinghead.nodes.core.host_copy import HostCopies


def test_host_frames_pass_without_a_copy():
    copies = HostCopies(1)
    frames = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    for _ in range(3):  # one buffer, never released: it is not needed here
        arriving = copies.send(frames)
        assert arriving.take().ctypes.data == frames.data_ptr()
    arriving.release()
    arriving.release()
