"""Put-back and NV12 in one pass against put-back and conversion one after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.color import rgb_to_nv12
from talkinghead.nodes.ditto.crop import FaceBox, crop_matrices
from talkinghead.nodes.ditto.device_putback import blend_part, make_face_plates, put_back_nv12
from talkinghead.nodes.ditto.putback import feather_mask, put_back

SIDE, WIDTH, HEIGHT = 64, 160, 120
PLACES = (((70, 60), 50, 0.0), ((30, 90), 61, 0.6), ((150, 10), 44, -1.2))


@pytest.fixture(scope="module")
def scene():
    rng = np.random.default_rng(3)
    frames = [rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for _ in PLACES]
    c2o = [crop_matrices(FaceBox(centre, (size, size), angle), SIDE).c2o for centre, size, angle in PLACES]
    # smooth, as rendered faces are: the two ways of interpolating then differ by less than a level
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    faces = np.stack([[x, y, (x + k) / 3] for k in range(3)]).astype(np.float32)
    return frames, c2o, torch.from_numpy(faces)


@pytest.fixture(scope="module")
def plates(scene):
    frames, c2o, _ = scene
    return make_face_plates(frames, c2o, SIDE, "bt709")


def test_one_pass_is_put_back_and_conversion(scene, plates):
    frames, c2o, faces = scene
    index = torch.tensor([2, 0, 1, 0])
    got = put_back_nv12(faces[[0, 1, 2, 2]], plates, index).numpy()
    mask = feather_mask(SIDE, SIDE)
    for out, i, face in zip(got, index.tolist(), faces[[0, 1, 2, 2]], strict=True):
        picture = put_back(frames[i], face.permute(1, 2, 0).numpy() * 255, c2o[i], mask)
        wanted = rgb_to_nv12(picture[None], "bt709")[0]
        difference = np.abs(out.astype(int) - wanted)
        assert difference.max() <= 1
        assert (difference > 0).mean() <= 0.02
        assert (out != rgb_to_nv12(frames[i][None], "bt709")[0]).mean() > 0.05


def test_what_the_mask_does_not_touch_keeps_its_bytes(scene, plates):
    frames, _, faces = scene
    index = torch.arange(3)
    part, changed = blend_part(faces, plates, index)
    out = put_back_nv12(faces, plates, index)
    h, w = plates.rgb.shape[1:3]
    assert h % 16 == w % 16 == 0
    for i in range(3):
        x, y = plates.corner[i].tolist()
        assert x % 2 == y % 2 == 0
        touched = np.zeros((HEIGHT, WIDTH), bool)
        touched[y : y + h, x : x + w] = changed[i].numpy()
        blocks = touched.reshape(HEIGHT // 2, 2, WIDTH // 2, 2).any((1, 3))
        same = out[i] == plates.nv12[i]
        luma = ~blocks.repeat(2, 0).repeat(2, 1)
        chroma = ~blocks.repeat(2, 1)
        assert same[:HEIGHT].numpy()[luma].all()
        assert same[HEIGHT:].numpy()[chroma].all()
        assert 0.03 < blocks.mean() < 0.5
    assert part.dtype == torch.int32


def test_a_face_that_is_not_usable_leaves_its_frame(scene, plates):
    _, _, faces = scene
    out = put_back_nv12(faces, plates, torch.arange(3), torch.tensor([True, False, True]))
    assert torch.equal(out[1], plates.nv12[1])
    assert not torch.equal(out[0], plates.nv12[0])


def test_eight_at_once_are_eight_alone(scene, plates):
    _, _, faces = scene
    index = torch.tensor([0, 1, 2, 2, 1, 0, 1, 2])
    many = torch.stack([faces[i % 3] * (1 - 0.1 * i) for i in range(8)])
    whole = put_back_nv12(many, plates, index)
    for i in range(8):
        assert torch.equal(put_back_nv12(many[i : i + 1], plates, index[i : i + 1])[0], whole[i])
    assert len({row.numpy().tobytes() for row in whole}) == 8


def test_plates_move_whole(plates):
    moved = plates.to("meta")
    assert moved.size == plates.size == (WIDTH, HEIGHT)
    assert moved.n_bytes == plates.n_bytes > 0
    assert moved.weight.is_meta
    assert moved.pixels.is_meta


def test_what_does_not_fit_is_refused(scene, plates):
    frames, c2o, faces = scene
    with pytest.raises(ValueError, match="3 frames and 1 crop matrices"):
        make_face_plates(frames, c2o[:1], SIDE, "bt709")
    outside = crop_matrices(FaceBox((900, 900), (40, 40), 0.0), SIDE).c2o
    with pytest.raises(ValueError, match="leaves 0x0 pixels"):
        make_face_plates(frames[:1], [outside], SIDE, "bt709")
    with pytest.raises(ValueError, match=r"\(n, 3, S, S\)"):
        put_back_nv12(faces.permute(0, 2, 3, 1), plates, torch.arange(3))
    with pytest.raises(ValueError, match="move them together"):
        put_back_nv12(faces, plates, torch.arange(3, device="meta"))
