"""Ditto's rendering on a card: the CPU's frames, nothing waits for it, volumes wherever they lie, memory given back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ditto_model_parts import tiny_modules
from ditto_render_parts import MadeUpMotion, ditto_avatar

from talkinghead.nodes.core.frames import Placement, RunContext
from talkinghead.nodes.core.pool import AvatarPool
from talkinghead.nodes.ditto import handle as handle_module
from talkinghead.nodes.ditto.face_plates import FaceSlots, HostFaces
from talkinghead.nodes.ditto.handle import DittoModel
from talkinghead.nodes.ditto.model import save_modules
from talkinghead.nodes.ditto.put_back_stream import PutBackStream
from talkinghead.nodes.ditto.render import DittoCropStream

pytestmark = pytest.mark.gpu
FRAMES = 45


@pytest.fixture(autouse=True)
def _card():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def model(tmp_path, monkeypatch):
    save_modules(tiny_modules(), tmp_path / "weights", torch.float32)
    monkeypatch.setattr(handle_module, "EMBEDDED_DIR", tmp_path / "weights")
    return DittoModel(backend="cuda graph")


@pytest.fixture
def avatar(model, tmp_path):
    return ditto_avatar(tmp_path, model, n=7, faceless=(4,))


class Warm(RunContext):
    """Keeps its avatars, as a server does."""

    def __init__(self, device="cuda", **kwargs):
        super().__init__(device, **kwargs)
        self.pool = AvatarPool(max_bytes=1 << 30)

    def use_avatar(self, packet):
        return self.pool.use(packet, self.device)


def film(model, avatar, memory="auto", batch=8):
    motion = MadeUpMotion(model, avatar, FRAMES)
    return PutBackStream(DittoCropStream(model, avatar, motion, batch, memory=memory), avatar)


def frames_of(stream, ctx, n=8):
    with torch.inference_mode():
        return torch.cat([chunk.frames for chunk in stream.chunks(ctx, n)])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_frames_are_those_of_the_cpu(model, avatar, precision):
    exact = frames_of(film(replace(model, backend="eager"), avatar).nv12("bt709"), RunContext())
    ctx = Warm()
    got = frames_of(film(replace(model, precision=precision), avatar).nv12("bt709"), ctx)
    assert ctx.report.facts["ditto engine"] == "cuda graph, batch 8, on cuda"
    assert "put back" in ctx.report.facts
    assert got.device.type == "cuda"
    difference = (got.cpu().int() - exact.int()).abs()
    print(precision, "largest", int(difference.max()), "share", float((difference > 0).float().mean()))
    assert difference.max() <= (2 if precision == "fp32" else 12)
    assert (difference > 1).float().mean() <= (1e-4 if precision == "fp32" else 0.02)
    errors = difference.float().square().flatten(1).mean(1)
    assert errors.max() <= 255**2 / 10**3.5  # 35 dB in every frame


def test_rgb_on_the_host_is_the_same_picture(model, avatar):
    rgb = frames_of(film(model, avatar), Warm())
    crops = film(model, avatar).crops
    assert rgb.device.type == "cpu"
    assert (
        len(np.unique(rgb.numpy().reshape(FRAMES, -1), axis=0))
        == FRAMES - sum(k % 7 == 4 for k in range(FRAMES)) + 1
    )
    assert frames_of(crops, Warm()).shape[0] == FRAMES


@pytest.mark.parametrize("overlap", [None, False, True])
def test_volumes_are_the_same_wherever_they_lie(model, avatar, overlap):
    made = {}
    for memory in ("device", "host", "auto"):
        ctx = Warm(overlap=overlap)
        made[memory] = frames_of(film(model, avatar, memory).nv12("bt709"), ctx, 5).cpu()
        assert ctx.report.warnings.keys() <= {
            key for key in ctx.report.warnings if "no face in the avatar" in key
        }
        print(memory, ctx.report.facts["feature volumes"])
    assert torch.equal(made["device"], made["host"])
    assert torch.equal(made["device"], made["auto"])


@pytest.mark.parametrize("memory", ["device", "host"])
def test_nothing_waits_for_the_card(model, avatar, memory):
    """Once every frame of the avatar has been shown. Flags and pictures come by event."""
    ctx, stream = Warm(), film(model, avatar, memory).nv12("bt709")
    first = frames_of(stream, ctx)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = frames_of(stream, ctx)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, first)


def test_slots_on_the_card_blend_as_the_host(avatar):
    with avatar.open() as reader:
        host, card = (
            HostFaces(reader, 64, "bt709", "limited"),
            FaceSlots(reader, 64, "bt709", "limited", torch.device("cuda")),
        )
        few = FaceSlots(
            reader, 64, "bt709", "limited", torch.device("cuda"), max_bytes=3 * (card.n_bytes // 7 + 8)
        )
        y, x = np.mgrid[0:64, 0:64] * 4
        faces = torch.from_numpy(
            np.stack([np.stack([x, y, (x + y) * k // 16], -1) for k in range(8)]).astype(np.uint8)
        )
        where = Placement(torch.arange(8) % 7, torch.arange(8) != 5)
        wanted, got = host.blend(faces, where), card.blend(faces.cuda(), where)
        assert (got.cpu().int() - wanted.int()).abs().max() <= 1
        assert torch.equal(few.blend(faces.cuda(), where), got)
        assert torch.equal(got[5].cpu(), wanted[5])


def test_the_card_is_given_back(model, avatar):
    def one():
        ctx = Warm()
        frames_of(film(model, avatar, "device").nv12("bt709"), ctx)
        assert ctx.pool.stats().bytes > 0
        ctx.pool.flush()
        ctx.close_engines()

    one()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    one()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)
