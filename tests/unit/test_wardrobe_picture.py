"""The picture of web/docs/wardrobe.md shows what its captions say, and is the one that its maker draws."""

from __future__ import annotations

import cv2
import numpy as np
from support import ROOT
from wardrobe_picture import Dressing, panels, sheet


def test_the_panels_show_what_they_say():
    dressing = Dressing()
    assert dressing.numbers.outside_changed_px == dressing.numbers.occluder_changed_px == 0
    assert not dressing.check.ok
    assert dressing.ghosts.sum() > 500
    assert not (dressing.ghosts & dressing.hands).any()
    assert not (dressing.paint & dressing.hands).any()
    assert dressing.latents[dressing.paint].all()
    assert (dressing.alpha[dressing.hands] == 0).all()
    shown = dict(panels(dressing))
    assert len(shown) == 6
    for picture in shown.values():
        assert picture.shape == dressing.source.shape
        assert picture.std() > 0.1


def test_the_page_has_the_makers_picture():
    path = ROOT / "web" / "docs" / "wardrobe.png"
    assert path.stat().st_size < 200_000
    kept, made = cv2.imread(str(path))[..., ::-1], sheet()
    assert kept.shape == made.shape
    # Letters may differ between versions of OpenCV; the panels are the same to a level.
    assert (np.abs(kept.astype(int) - made) > 2).mean() < 0.01
