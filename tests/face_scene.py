"""A scripted detector and the frames it sees: textured squares as people, for tests of whoever follows a face."""

import faces as pictures
import numpy as np

from talkinghead.nodes.core.face_track import track_face
from talkinghead.nodes.core.faces import LARGEST, Face

_TEXTURES = [
    pictures.cv2.resize(np.random.default_rng(s).integers(40, 216, (6, 6), np.uint8), (48, 48))
    for s in range(3)
]


class Scene:
    """Frames with textured squares as people; as a detector it says where they are, except in frames of `blind`.

    boxes: for each frame a list of (person, x, y): the left upper corner of a 48 pixel square. The frame's index stands
    in the left upper corner's pixels.
    """

    name = "scene-1"

    def __init__(self, boxes, blind=(), scale=1, mesh=True):
        self.people, self.blind, self.scale, self.mesh = boxes, set(blind), scale, mesh
        self.asked, self.looked, self.sizes = [], [], set()

    def frame(self, i):
        self.asked.append(i)
        picture = np.full((180, 320, 3), 128, np.uint8)
        for person, x, y in self.people[i]:
            picture[y : y + 48, x : x + 48] = _TEXTURES[person][..., None]
        picture[:8, :8] = i
        return picture.repeat(self.scale, 0).repeat(self.scale, 1)

    def detect(self, picture):
        i = int(picture[2, 2, 0])
        self.looked.append(i)
        self.sizes.add(picture.shape)
        if i in self.blind:
            return []
        share = picture.shape[1] / 320
        return [self._face(np.array([x, y, x + 48, y + 48]) * share) for _, x, y in self.people[i]]

    def _face(self, box):
        points = np.linspace(box[:2], box[2:], 68).astype(np.float32)
        mesh = np.linspace(box[2:], box[:2], 468).astype(np.float32) if self.mesh else None
        return Face(tuple(box.tolist()), 0.9, points, mesh)

    def track(self, choice=LARGEST, **options):
        return track_face(len(self.people), self.frame, self, choice, **options)


def still(n, person=0, x=100, y=60):
    return [[(person, x, y)] for _ in range(n)]


def gone(people, *frames):
    return [[] if i in frames else row for i, row in enumerate(people)]


def lost(track):
    return np.flatnonzero(~track.found).tolist()
