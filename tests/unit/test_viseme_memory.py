"""Recalled mouths of a run, frame by frame: what is promised, learned, lost, and whose crop surrounds a mouth."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from talkinghead.nodes.core.blend import face_crop
from talkinghead.nodes.core.viseme_cache import apply_patch, cut_patch
from talkinghead.nodes.musetalk.viseme_memory import VisemeMemory, own_crop

SIZE = 64


class Reader:
    """What the memory needs of a packet: five frames of one face that moves to the right."""

    def __init__(self, n=5, seed=0):
        rng = np.random.default_rng(seed)
        self.frames = [torch.from_numpy(rng.integers(0, 256, (90, 120, 3), np.uint8)) for _ in range(n)]
        self.boxes = torch.tensor([(10 + 4 * i, 8, 74 + 4 * i, 80) for i in range(n)], dtype=torch.int32)

    def frame(self, index):
        return self.frames[index]


def latents(seed):
    return torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(seed))


def drawn(number, seed, avatar=0):
    return SimpleNamespace(plan=SimpleNamespace(frame=number), avatar=avatar, latents=latents(seed))


def decoded(seed):
    return torch.randint(
        0, 256, (SIZE, SIZE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def shown(memory, frame, viseme):
    crop, usable = memory.crop(frame, viseme)
    assert usable
    return crop.numpy()


@pytest.fixture
def memory():
    return VisemeMemory(Reader(), SIZE, 8 << 20)


def test_a_known_mouth_comes_back_on_the_crop_of_its_new_frame(memory):
    first, again = drawn(0, 1, avatar=0), drawn(7, 1, avatar=3)
    assert memory.recall([first]) == {}
    memory.learn(first, decoded(1))
    [viseme] = memory.recall([again]).values()
    reader = memory._reader
    own = face_crop(reader.frames[3].numpy(), tuple(reader.boxes[3].tolist()), SIZE)
    wanted = apply_patch(own, cut_patch(decoded(1).numpy()))
    assert np.array_equal(shown(memory, again, viseme), wanted)
    assert (wanted == own).all(2).mean() > 0.7
    assert str(memory.cache) == "1 of 2 lookups (50.0 %)"


def test_a_mouth_may_be_taken_before_it_is_decoded(memory):
    frames = [drawn(0, 1), drawn(1, 2), drawn(2, 1), drawn(3, 2), drawn(4, 3)]
    known = memory.recall(frames)
    assert sorted(known) == [2, 3]
    assert not memory.crop(frames[2], known[2])[1]
    for number in (0, 1, 4):
        memory.learn(frames[number], decoded(number))
    for number, source in ((2, 0), (3, 1)):
        got = shown(memory, frames[number], known[number])
        patch = cut_patch(decoded(source).numpy())
        assert np.array_equal(cut_patch(got)[9, 16], patch[9, 16])
    assert not memory._promised


def test_grouping_changes_nothing():
    seeds = [1, 2, 1, 3, 2, 1, 4, 3, 5, 1]
    found = []
    for step in (1, 3, 10):
        memory, hits = VisemeMemory(Reader(), SIZE, 8 << 20), []
        for start in range(0, len(seeds), step):
            frames = [drawn(i, seeds[i]) for i in range(start, min(start + step, len(seeds)))]
            known = memory.recall(frames)
            for frame in frames:
                if frame.plan.frame not in known:
                    memory.learn(frame, decoded(frame.plan.frame))
            hits += sorted(known)
        found.append(hits)
    assert found[0] == found[1] == found[2] == [2, 4, 5, 7, 9]


def test_a_mouth_that_could_not_be_drawn_is_forgotten(memory):
    first, second, third = drawn(0, 1), drawn(1, 1), drawn(2, 1)
    known = memory.recall([first, second])
    memory.learn(first, None)
    assert not memory.crop(second, known[1])[1]
    assert memory.recall([third]) == {}
    memory.learn(third, decoded(3))
    assert sorted(memory.recall([drawn(3, 1)])) == [3]
    memory.learn(drawn(9, 9), decoded(9))  # never asked for
    assert len(memory.cache) == 1


def test_two_avatars_in_turn_keep_their_own_mouths():
    """Row 31: the same words, frame by frame in turn; each shows its own mouth on its own face."""
    red, blue = (VisemeMemory(Reader(seed=s), SIZE, 8 << 20) for s in (1, 2))
    colours = {id(red): (255, 0, 0), id(blue): (0, 0, 255)}
    for number in range(6):
        for memory in (red, blue):
            frame = drawn(number, number % 3)
            known = memory.recall([frame])
            painted = torch.tensor(colours[id(memory)], dtype=torch.uint8).expand(SIZE, SIZE, 3)
            if number < 3:
                assert known == {}
                memory.learn(frame, painted)
            else:
                mouth = cut_patch(shown(memory, frame, known[number]))
                assert (mouth[9, 16] == colours[id(memory)]).all()
    assert red.cache.hits == blue.cache.hits == 3


@pytest.mark.parametrize("box", [(-9, -5, 55, 67), (70, 30, 134, 102), (10, 8, 74, 80)])
def test_a_box_that_leaves_the_frame_repeats_its_edge(box):
    picture = Reader().frames[0].numpy()
    wide = np.pad(picture, ((20, 20), (20, 20), (0, 0)), mode="edge")
    x1, y1, x2, y2 = (v + 20 for v in box)
    assert np.array_equal(own_crop(picture, box, SIZE), face_crop(wide, (x1, y1, x2, y2), SIZE))
