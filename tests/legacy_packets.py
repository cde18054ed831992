"""Avatars in the forms of other programs, made up and written as those write them."""

import json
import pickle
from fractions import Fraction

import cv2
import numpy as np
import torch

from talkinghead.nodes.core.blend import crop_geometry
from talkinghead.nodes.core.frames import TensorStream

WIDTH, HEIGHT = 96, 80


class Made:
    """A made-up avatar in memory: n entries, all different."""

    def __init__(self, n=4, seed=0):
        rng = np.random.default_rng(seed)
        self.n = n
        self.frames = rng.integers(0, 256, (n, HEIGHT, WIDTH, 3), dtype=np.uint8)
        self.latents = torch.from_numpy(rng.standard_normal((n, 8, 32, 32))).half()
        self.boxes = [(30 + i, 20 + i, 60 + i, 54 + i) for i in range(n)]
        self.crops = [crop_geometry(b) for b in self.boxes]
        self.masks = [rng.integers(0, 256, (c[3] - c[1], c[2] - c[0]), dtype=np.uint8) for c in self.crops]
        self.facts = {"avatar_id": "a1", "video_path": "/videos/clip.mp4", "bbox_shift": 0}

    def listed(self, order):
        """Return an avatar whose entries are those of `order`."""
        other = Made(0)
        other.n, other.facts = len(order), self.facts
        other.frames, other.latents = self.frames[order], self.latents[order]
        for name in ("boxes", "crops", "masks"):
            setattr(other, name, [getattr(self, name)[i] for i in order])
        return other

    def stream(self):
        return TensorStream(torch.from_numpy(self.frames), Fraction(25))


def dump(path, value):
    path.write_bytes(pickle.dumps(value))


def write_seven(folder, made):
    folder.mkdir(parents=True)
    torch.save(torch.from_numpy(made.frames).permute(0, 3, 1, 2).contiguous(), folder / "frames.pt")
    torch.save(made.latents, folder / "latents.pt")
    torch.save([torch.from_numpy(m)[None].float() / 255 for m in made.masks], folder / "masks.pt")
    dump(folder / "geometry.pkl", made.crops)
    dump(folder / "coords.pkl", [list(b) for b in made.boxes])
    dump(folder / "mask_coords.pkl", [list(c[:4]) for c in made.crops])
    (folder / "avator_info.json").write_text(json.dumps(made.facts))
    return folder


def write_four(folder, made):
    folder.mkdir(parents=True)
    torch.save(made.latents, folder / "latents.pt", _use_new_zipfile_serialization=False)
    dump(folder / "coords.pkl", np.array(made.boxes))
    dump(folder / "masks.pkl", [m.astype(np.float32) / 255 for m in made.masks])
    (folder / "meta.json").write_text(json.dumps(made.facts))
    return folder


def write_realtime(folder, made):
    for name in ("full_imgs", "mask"):
        (folder / name).mkdir(parents=True)
    for i in range(made.n):
        for name, picture in (("full_imgs", made.frames[i][..., ::-1]), ("mask", made.masks[i])):
            (folder / name / f"{i:08d}.png").write_bytes(cv2.imencode(".png", picture)[1].tobytes())
    torch.save([t[None] for t in made.latents], folder / "latents.pt")
    dump(folder / "coords.pkl", [[np.int64(v) for v in b] for b in made.boxes])
    dump(folder / "mask_coords.pkl", [list(c[:4]) for c in made.crops])
    (folder / "avator_info.json").write_text(json.dumps(made.facts))
    return folder


WRITERS = {"seven files": write_seven, "four files": write_four, "realtime": write_realtime}
