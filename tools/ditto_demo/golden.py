"""The small clips of tests/golden/embedded_ditto: test speech, one presenter as a still, and what the truth shows.

Per clip NAME: NAME.flac (16 kHz, rests at both ends), NAME.png (the crop of the source), NAME.json (share of dark pixels in
the mouth's box of the drawn truth for every frame, quiet frames, half sizes of the box, threshold).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from demo import nets as store
from demo.evaluate import clips, curve_silence, mouths
from demo.pictures import dark_threshold

from . import pictures, space
from .evaluate import RATE, draw, open_share, source_of
from .picture_stage import pose_of

CLIPS = {"trained_voice": ("joe", 61), "unseen_voice": ("jf_alpha", 63)}


def make_clip(name: str, shard: Path, seed: int, folder: Path) -> None:
    import cv2
    import soundfile

    audio, curve = min(clips(shard, 99), key=lambda c: len(c[0]))  # the shortest, whatever it says
    look, view, head, picture = source_of(seed)
    n = -(-len(audio) * 25 // RATE)
    mouth = mouths(curve, n)
    params = torch.cat([mouth, torch.zeros(n, 4)], 1)
    pose = space.head_pose(head.expand(n, -1), view.expand(n, -1), params)
    truth = draw(look, pose, mouth, view)
    posed = store.pack_module("nodes.ditto.geometry").transform_keypoints
    place = pictures.mouth_place(posed(pose_of(head, torch.zeros(1, 63), space.keypoints(look)))).expand(n, -1)
    edge = float(dark_threshold(look))
    folder.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / f"{name}.png"), picture[0].numpy()[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9])
    soundfile.write(str(folder / f"{name}.flac"), audio, RATE, subtype="PCM_16")
    facts = {
        "box": pictures.MOUTH_BOX, "dark_below": round(edge * 255, 3),
        "open": [round(float(v), 4) for v in open_share(truth, edge, place)],
        "quiet_frames": [int(i) for i in np.flatnonzero(curve_silence(curve, n))],
    }
    (folder / f"{name}.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    print(name, n, "frames")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path(".train"))
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    for name, (voice, seed) in CLIPS.items():
        shard = next((args.work / "speech").glob(f"test_{voice}_*.npz"))
        make_clip(name, shard, seed, store.ROOT / "tests" / "golden" / "embedded_ditto")


if __name__ == "__main__":
    main()
