"""The small clips of tests/golden/embedded: test speech, one presenter held still, and what the truth shows.

Per clip NAME: NAME.flac (16 kHz, rests at both ends), NAME.png (the crop with the mouth at rest, then every 8th true
crop), NAME.json (open pixels of the truth for every frame, quiet frames, box, threshold). The presenters are new ones.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from . import nets as store
from . import presenter, visemes
from .evaluate import clips, curve_silence, draw_frames, mouths
from .identity import sample_looks
from .measures import open_pixels
from .pictures import box_slices, dark_threshold

RATE, FPS, SIZE, EVERY = 16000, 25, 128, 8
CLIPS = {"trained_voice": ("joe", 41), "unseen_voice": ("jf_alpha", 43)}


def make_clip(name: str, shard: Path, seed: int, folder: Path) -> None:
    import cv2
    import soundfile

    audio, curve = min(clips(shard, 99), key=lambda c: len(c[0]))  # the shortest, whatever it says
    look = sample_looks(1, "cpu", torch.Generator().manual_seed(seed))
    n = -(-len(audio) * FPS // RATE)
    pose = {k: v.expand(n, -1, -1, -1) for k, v in presenter.neutral_pose(1, "cpu").items()}
    view = presenter.face_box(look, presenter.neutral_pose(1, "cpu")).expand(n, -1)
    rest = torch.tensor([visemes.REST])
    source = draw_frames(look, pose, rest, view, SIZE)
    truth = draw_frames(look, pose, mouths(curve, n), view, SIZE)
    edge = float(dark_threshold(look))
    rows, cols = box_slices(SIZE)
    strip = np.concatenate([source[0].numpy(), *truth[::EVERY].numpy()], 1)
    folder.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / f"{name}.png"), strip[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9])
    soundfile.write(str(folder / f"{name}.flac"), audio, RATE, subtype="PCM_16")
    facts = {
        "fps": FPS, "every": EVERY, "rows": [rows.start, rows.stop], "columns": [cols.start, cols.stop],
        "dark_below": round(edge * 255, 3), "open_pixels": [int(v) for v in open_pixels(truth, edge)],
        "quiet_frames": [int(i) for i in np.flatnonzero(curve_silence(curve, n))],
    }
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    print(name, n, "frames")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path(".train"))
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    for name, (voice, seed) in CLIPS.items():
        shard = next((args.work / "speech").glob(f"test_{voice}_*.npz"))
        make_clip(name, shard, seed, store.ROOT / "tests" / "golden" / "embedded")


if __name__ == "__main__":
    main()
