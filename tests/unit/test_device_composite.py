"""Composite and NV12 in one pass: the numbers of `composite` and `rgb_to_nv12`, and the background's bytes."""

import numpy as np
import pytest
import torch
from kernel_cases import scene

from talkinghead.nodes.core.blend import composite
from talkinghead.nodes.core.color import rgb_to_nv12
from talkinghead.nodes.core.device_composite import composite_nv12, make_plates


@pytest.mark.parametrize(("matrix", "color_range"), [("bt709", "limited"), ("bt601", "full")])
def test_equals_blend_then_convert(matrix, color_range):
    frames, boxes, crops, masks, faces = scene(5)
    plates = make_plates(frames, boxes, crops, masks, matrix, color_range)
    index = [0, 1, 2, 3, 0]
    got = composite_nv12(torch.from_numpy(faces), plates, torch.tensor(index)).numpy()
    wanted = []
    for face, i in zip(faces, index, strict=True):
        frame = frames[i].copy()
        composite(frame, face, boxes[i], crops[i], masks[i])
        wanted.append(rgb_to_nv12(frame[None], matrix, color_range)[0])
    difference = np.abs(got.astype(int) - np.stack(wanted))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.02
    assert (got != plates.nv12.numpy()[index]).any()  # and it did something


def test_what_the_mask_leaves_keeps_its_bytes():
    frames, boxes, crops, masks, faces = scene(4)
    plates = make_plates(frames, boxes, crops, masks, "bt709")
    got = composite_nv12(torch.from_numpy(faces), plates, torch.arange(4)).numpy()
    height = frames[0].shape[0]
    for k, (box, crop, mask) in enumerate(zip(boxes, crops, masks, strict=True)):
        placed = np.zeros(frames[0].shape[:2], bool)
        for y in range(max(0, box[1]), min(height, box[3])):
            for x in range(max(0, box[0]), min(placed.shape[1], box[2])):
                placed[y, x] = mask[y - crop[1], x - crop[0]] > 0
        blocks = placed.reshape(height // 2, 2, -1, 2).any((1, 3))
        free = ~blocks.repeat(2, 0).repeat(2, 1)
        assert np.array_equal(got[k, :height][free], plates.nv12[k, :height].numpy()[free])
        chroma = ~blocks.repeat(2, 1)
        assert np.array_equal(got[k, height:][chroma], plates.nv12[k, height:].numpy()[chroma])


def test_an_unusable_crop_leaves_the_frame():
    *parts, faces = scene(2)
    plates = make_plates(*parts, "bt709")
    got = composite_nv12(
        torch.from_numpy(faces), plates, torch.tensor([0, 1]), usable=torch.tensor([False, True])
    )
    assert torch.equal(got[0], plates.nv12[0])
    assert not torch.equal(got[1], plates.nv12[1])


def test_the_roi_is_one_aligned_size_and_inside():
    *parts, _ = scene(1)
    plates = make_plates(*parts, "bt709")
    height, width = plates.rgb.shape[1:3]
    assert height % 16 == 0
    assert width % 16 == 0
    assert (plates.corner % 2 == 0).all()
    assert (plates.corner >= 0).all()
    assert (plates.corner + torch.tensor([width, height]) <= torch.tensor(plates.size)).all()
    assert plates.n_bytes == sum(t.numel() for t in (plates.nv12, plates.rgb, plates.weight))
    assert plates.to("cpu").matrix == "bt709"


def test_bad_input_is_named():
    frames, boxes, crops, masks, faces = scene(2)
    with pytest.raises(ValueError, match="as many"):
        make_plates(frames, boxes[:2], crops, masks, "bt709")
    with pytest.raises(ValueError, match="200, 200"):
        make_plates(frames[:1], [(200, 200, 260, 260)], crops[:1], masks[:1], "bt709")
    with pytest.raises(ValueError, match="even"):
        make_plates([frames[0][:95]], boxes[:1], crops[:1], masks[:1], "bt709")
    with pytest.raises(ValueError, match="covers"):
        make_plates(frames[:1], boxes[:1], crops[:1], [masks[0][:20]], "bt709")
    plates = make_plates(frames, boxes, crops, masks, "bt709")
    with pytest.raises(ValueError, match="uint8"):
        composite_nv12(torch.from_numpy(faces).float(), plates, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="index"):
        composite_nv12(torch.from_numpy(faces), plates, torch.tensor([0]))
