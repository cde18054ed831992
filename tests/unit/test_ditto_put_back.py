"""Ditto's faces in full frames: the rule of put-back, the background's bytes kept, the same on card and host, bounded."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ditto_render_parts import SIZE, ditto_avatar

from talkinghead.nodes.avatars.composite import composite_stream
from talkinghead.nodes.core.color import rgb_to_nv12
from talkinghead.nodes.core.frames import FrameInfo, FrameStream, Placement, RunContext, TensorStream
from talkinghead.nodes.core.pool import AvatarPool
from talkinghead.nodes.ditto.crop import FaceBox, crop_matrices
from talkinghead.nodes.ditto.device_putback import blend_part, make_face_plates
from talkinghead.nodes.ditto.face_plates import FaceSlots, HostFaces
from talkinghead.nodes.ditto.put_back_stream import PutBackStream
from talkinghead.nodes.ditto.putback import feather_mask, from_face, put_back, touched_part
from talkinghead.nodes.musetalk.render import CompositeStream

SIDE = 64
MODEL = SimpleNamespace(identity="0")
CPU = torch.device("cpu")


class Faces(FrameStream):
    """Smooth faces, every one another; `bad` ones are not usable."""

    stage = "faces"

    def __init__(self, avatar, n=11, bad=(), side=SIDE):
        self.avatar, self.bad, self.batch = avatar, bad, 4
        self.info = FrameInfo(side, side, Fraction(25), n)

    def generate(self, ctx, n):
        for start in range(0, self.info.n_frames, n):
            k = torch.arange(start, min(start + n, self.info.n_frames))
            index = torch.from_numpy(self.avatar.avatar_indices(start, len(k), self.info.fps))
            usable = torch.tensor([int(i) not in self.bad for i in k])
            yield faces_of(k.tolist(), self.info.width), Placement(index, usable)


def faces_of(numbers, side=SIDE):
    y, x = np.mgrid[0:side, 0:side] * (255 / (side - 1))
    return torch.from_numpy(
        np.stack([np.stack([x, y, (x + y) * k / 40], -1) for k in numbers]).round().astype(np.uint8)
    )


def run(stream, n=8, ctx=None):
    with torch.inference_mode():
        return torch.cat([c.frames for c in stream.chunks(ctx or RunContext(), n)]).numpy()


@pytest.fixture
def avatar(tmp_path):
    return ditto_avatar(tmp_path, MODEL, cycle="loop")


def backgrounds(avatar):
    with avatar.open() as reader:
        return [reader.frame(i).numpy().copy() for i in range(avatar.info.n_frames)], reader.c2o.numpy()


def test_frames_are_their_backgrounds_with_their_faces(avatar):
    got = run(PutBackStream(Faces(avatar), avatar), 5)
    frames, c2o = backgrounds(avatar)
    mask = feather_mask(SIDE, SIDE)
    for k, out in enumerate(got):
        face = faces_of([k])[0].numpy().astype(np.float32)
        assert np.array_equal(out, put_back(frames[k % 3], face, from_face(c2o[k % 3], SIDE), mask))
        x1, y1, x2, y2 = touched_part(from_face(c2o[k % 3], SIDE), SIDE, *SIZE)
        outside = np.ones(out.shape[:2], bool)
        outside[y1:y2, x1:x2] = False
        assert outside.mean() > 0.4
        assert np.array_equal(out[outside], frames[k % 3][outside])
        assert (out != frames[k % 3]).mean() > 0.05


@pytest.mark.parametrize("matrix", [None, "bt709"])
def test_chunks_change_nothing(avatar, matrix):
    stream = PutBackStream(Faces(avatar), avatar)
    stream = stream.nv12(matrix) if matrix else stream
    whole = run(stream)
    assert len({frame.tobytes() for frame in whole}) == 11
    for n in (1, 3, 100):
        assert np.array_equal(run(stream, n), whole)
    assert np.array_equal(run(stream, 4, RunContext(overlap=False)), whole)


@pytest.mark.parametrize("bad", [(), (1, 5)])
def test_nv12_is_the_rgb_converted(avatar, bad):
    stream = PutBackStream(Faces(avatar, bad=bad), avatar)
    got, wanted = run(stream.nv12("bt601")), rgb_to_nv12(run(stream), "bt601")
    difference = np.abs(got.astype(int) - wanted)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.02
    own = rgb_to_nv12(np.stack(backgrounds(avatar)[0]), "bt601")
    same = [np.array_equal(frame, own[k % 3]) for k, frame in enumerate(got)]
    assert same == [k in bad for k in range(11)]


def test_frames_without_a_face_stay_wherever_their_crop_is(tmp_path):
    """The builder borrows a crop from a neighbour; it need not touch the frame."""
    packet = ditto_avatar(tmp_path, MODEL, faceless=(1,))
    with packet.open() as reader:
        shim = SimpleNamespace(
            frame=reader.frame, c2o=reader.c2o.clone(), found=reader.found.clone(), packet=packet
        )
        shim.c2o[1, :2, 2] += 1000
        where = Placement(torch.tensor([0, 1, 2]), shim.found)
        slots, host = (
            FaceSlots(shim, SIDE, "bt709", "limited", CPU),
            HostFaces(shim, SIDE, "bt709", "limited"),
        )
        for out in (slots.blend(faces_of([1, 2, 3]), where), host.blend(faces_of([1, 2, 3]), where)):
            own = [rgb_to_nv12(reader.frame(i).numpy()[None], "bt709")[0] for i in range(3)]
            assert [np.array_equal(a, b) for a, b in zip(out.numpy(), own, strict=True)] == [
                False,
                True,
                False,
            ]
        shim.found[:] = False
        nothing = FaceSlots(shim, SIDE, "bt709", "limited", CPU)
        out = nothing.blend(faces_of([1, 2, 3]), Placement(where.avatar_index, shim.found))
        assert np.array_equal(out.numpy(), np.stack(own))


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_card_gives_what_the_host_gives_in_any_number_of_slots(avatar, slots):
    with avatar.open() as reader:
        host = HostFaces(reader, SIDE, "bt709", "limited")
        whole = FaceSlots(reader, SIDE, "bt709", "limited", CPU)
        few = FaceSlots(reader, SIDE, "bt709", "limited", CPU, max_bytes=slots * (whole.n_bytes // 3 + 8))
        assert few.n_bytes <= whole.n_bytes * slots / 3 + len(few._plates.pixels) * 12
        for start in (0, 7, 14):
            faces = faces_of(range(start, start + 7))
            where = Placement(torch.arange(start, start + 7) % 3, torch.arange(7) != 4)
            card, ours = few.blend(faces, where), host.blend(faces, where)
            assert torch.equal(card, whole.blend(faces, where))
            difference = (card.int() - ours.int()).abs()
            assert difference.max() <= 1
            assert (difference > 0).float().mean() <= 0.02
            # where no mask touches, and in what is not usable, every byte is the background's
            assert torch.equal(card[4], ours[4])
    assert len(few._slot_of) == slots


def test_the_host_keeps_no_more_than_it_may(avatar):
    with avatar.open() as reader:
        each = HostFaces(reader, SIDE, "bt709", "limited").get(0).n_bytes
        few = HostFaces(reader, SIDE, "bt709", "limited", max_bytes=int(1.5 * each))
        where = Placement(torch.tensor([2, 0, 1, 0]), torch.ones(4, dtype=torch.bool))
        wanted = HostFaces(reader, SIDE, "bt709", "limited").blend(faces_of(range(4)), where)
        assert torch.equal(few.blend(faces_of(range(4)), where), wanted)
        assert 0 < few.n_bytes <= 1.5 * each


def test_plates_stay_with_the_avatar_and_count(avatar):
    pool = AvatarPool(max_bytes=1 << 30)

    class Warm(RunContext):
        def use_avatar(self, packet):
            return pool.use(packet, self.device)

    stream = PutBackStream(Faces(avatar), avatar).nv12("bt709")
    run(stream, ctx=Warm())
    held = pool.stats().bytes
    assert held > 3 * SIZE[0] * SIZE[1] * 1.5
    run(stream, ctx=Warm())
    assert (pool.stats().bytes, pool.stats().hits) == (held, 1)
    assert pool.flush() == held


@pytest.mark.parametrize("level", [37, 200, 255])
def test_a_flat_face_stays_flat(level):
    """Whole levels under a cut-off: no bit of the sampling may take one away, as it would of 7 % of the pixels."""
    c2o = crop_matrices(FaceBox((99.3, 92.1), (120.5, 120.5), 1.1), SIDE).c2o
    plates = make_face_plates([np.zeros((200, 200, 3), np.uint8)], [c2o], SIDE, "bt709")
    face = torch.full((1, SIDE, SIDE, 3), level, dtype=torch.uint8)
    rgb, _ = blend_part(face, plates, torch.zeros(1, dtype=torch.int64))
    whole = plates.weight == 1
    assert whole.float().mean() > 0.3
    assert (rgb[whole] == level).all()


def test_faces_of_any_side_cover_the_same_square():
    c2o = np.array([[0.5, 0.1, 20], [-0.1, 0.5, 30], [0, 0, 1]], np.float32)
    assert np.allclose(from_face(c2o, 512), c2o)
    for side in (64, 256):
        for edge in ([0, 0], [1, 0], [0.3, 0.8]):
            place, wanted = (
                m[:2, :2] @ (np.array(edge) * n - 0.5) + m[:2, 2]
                for m, n in ((from_face(c2o, side), side), (c2o, 512))
            )
            assert np.allclose(place, wanted)


def test_what_does_not_fit_is_refused(tmp_path, avatar):
    odd = ditto_avatar(tmp_path, MODEL, "odd", size=(SIZE[0] + 1, SIZE[1]))
    assert PutBackStream(Faces(odd), odd).nv12("bt709") is None
    assert run(PutBackStream(Faces(odd, 2), odd)).shape == (2, SIZE[1], SIZE[0] + 1, 3)
    with pytest.raises(ValueError, match="crops were rendered for avatar 'odd', not 'anna'"):
        PutBackStream(Faces(odd), avatar)
    with pytest.raises(ValueError, match="carry no face placement"):
        PutBackStream(TensorStream(torch.zeros(1, 4, 4, 3, dtype=torch.uint8), Fraction(25)), avatar)


def test_the_engine_of_the_avatar_puts_back(avatar):
    crops = Faces(avatar)
    assert isinstance(composite_stream(crops, avatar), PutBackStream)
    for modes, words in (
        ({"mask_mode": "lower half"}, "mask mode 'lower half' is for MuseTalk; .* leave it at 'mouth'"),
        ({"seam_mode": "none"}, "seam mode 'none' is for MuseTalk; .* leave it at 'feather'"),
    ):
        with pytest.raises(ValueError, match=words):
            composite_stream(crops, avatar, **modes)
    mouths = SimpleNamespace(digest="d", info=SimpleNamespace(engine="musetalk", size=(8, 8), id="m"))
    made = composite_stream(SimpleNamespace(avatar=mouths, info=crops.info), mouths, "mouth only", "none")
    assert (type(made), made.mask_mode, made.seam_mode) == (CompositeStream, "mouth only", "none")
