"""The clip of the wardrobe graphs with its two masks: a presenter in a burgundy dress, hands before it, 22 frames of 216x384.

22 is a length MiniMax H3 takes (17k+5). All motion is made of whole periods, so the clip is a loop. The gaps between the
fingers are 3 to 4 px, which is what a blocky mask or a closing loses. Masks are truth, not a tracker's: the garment is where
another cloth colour would show, the hands are where they were drawn.
"""

import argparse
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from . import assets, presenter, visemes
from . import nets as store

WIDTH, HEIGHT, FPS, N_FRAMES = 216, 384, 25, 22
SCALE = 72  # px a scene unit
LEFT, TOP = -1.5, -1.75
OVER = 4  # hands are drawn at this multiple of the size
FINGER = 7.6  # px
SKIN = (0.88, 0.68, 0.56)
DRESS = assets.LOOKS["demo"] | dict(cloth=(0.36, 0.04, 0.13), suit=0.0, shoulder=1.52)


def _segment(x: np.ndarray, y: np.ndarray, a: tuple, b: tuple) -> np.ndarray:
    """Distance (H,W) of every pixel to the segment from a to b."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    t = np.clip(((x - a[0]) * dx + (y - a[1]) * dy) / (dx * dx + dy * dy), 0, 1)
    return np.hypot(x - a[0] - t * dx, y - a[1] - t * dy)


def _parts(cx: float, cy: float, side: int) -> list[tuple]:
    """Capsules (a, b, radius) of a hand whose palm is at cx, cy: forearm, palm, four fingers, thumb. side: -1 or 1."""
    parts = [((cx + side * 34, cy + 110), (cx, cy + 14), 15.0), ((cx - 9, cy + 4), (cx + 9, cy + 4), 15.0)]
    x = cx - side * 17.5
    for length, gap in ((33, 3), (39, 3.5), (37, 4), (28, 0)):
        parts.append(((x, cy), (x - side * 2, cy - length), FINGER / 2))
        x += side * (FINGER + gap)
    parts.append(((cx - side * 15, cy + 8), (cx - side * 31, cy - 8), 4.6))
    return parts


def hand(turn: float, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return colour (H,W,3) and coverage (H,W) of one hand; turn: 0..1 of the loop."""
    y, x = (np.mgrid[0 : HEIGHT * OVER, 0 : WIDTH * OVER].astype(np.float32) + 0.5) / OVER
    wave = 2 * np.pi * turn
    cx = WIDTH / 2 + side * (44 + 5 * np.sin(wave + side))
    cy = 306 + 8 * np.sin(wave * (1 if side > 0 else 2) + 0.4) + 6 * side
    depth = np.full(x.shape, -np.inf, np.float32)
    for a, b, radius in _parts(cx, cy, side):
        depth = np.maximum(depth, 1 - _segment(x, y, a, b) / radius)
    light = 0.72 + 0.30 * np.clip(depth, 0, 1) ** 0.5
    colour = np.asarray(SKIN, np.float32) * light[..., None]
    small = (HEIGHT, OVER, WIDTH, OVER)
    cover = (depth > 0).astype(np.float32)
    inside = np.maximum(cover.reshape(small).sum((1, 3)), 1)
    colour = (colour * cover[..., None]).reshape(*small, 3).sum((1, 3)) / inside[..., None]
    return colour, cover.reshape(small).mean((1, 3))


def body(cloth: tuple, index: int) -> np.ndarray:
    """Return the presenter without hands, float32 (H,W,3); the chest breathes by a pixel."""
    look = assets.custom(assets.look_of("demo"), **(DRESS | {"cloth": cloth}))
    pose = {k: v[index : index + 1] for k, v in assets.loop_pose(N_FRAMES, 0).items()}
    breath = 0.014 * np.sin(2 * np.pi * index / N_FRAMES)
    view = [LEFT, TOP + breath, LEFT + WIDTH / SCALE, TOP + breath + HEIGHT / SCALE]
    big, _ = presenter.render(look, pose, torch.tensor([visemes.REST]), torch.tensor([view]), 2 * HEIGHT, 2 * WIDTH)
    return torch.nn.functional.avg_pool2d(big, 2)[0].permute(1, 2, 0).numpy()


def frame(index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return frame `index`: RGB uint8 (H,W,3), garment and hands bool (H,W). What the hands hide is no garment."""
    picture = body(DRESS["cloth"], index)
    garment = body((0.9, 0.9, 0.9), index)[..., 0] - body((0.1, 0.1, 0.1), index)[..., 0] > 0.3
    hands = np.zeros((HEIGHT, WIDTH), bool)
    for side in (-1, 1):
        colour, cover = hand(index / N_FRAMES, side)
        picture = picture + (colour - picture) * cover[..., None]
        hands |= cover > 0
    rgb = (picture * 255).round().clip(0, 255).astype(np.uint8)
    return rgb, garment & ~hands, hands


def write_gray(masks: np.ndarray, path: Path) -> None:
    """Write masks bool (T,H,W) as FFV1 gray, without loss; ComfyUI's LoadVideo reads it."""
    import av

    with av.open(str(path), "w") as box:
        stream = box.add_stream("ffv1", rate=Fraction(FPS), options={"level": "3", "context": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "gray"
        for mask in masks:
            box.mux(stream.encode(av.VideoFrame.from_ndarray(mask.astype(np.uint8) * 255, format="gray")))
        box.mux(stream.encode())


def write_film(pictures: np.ndarray, sound: np.ndarray, rate: int, path: Path, crf: int) -> None:
    """H.264 4:2:0, BT.709 limited range, tagged, and AAC of `sound` (n,)."""
    import av

    color = store.pack_module("nodes.core.color")
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as box:
        stream = box.add_stream("libx264", rate=Fraction(FPS), options={"crf": str(crf), "preset": "slow", "g": "50"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        context = stream.codec_context
        context.color_range, context.colorspace, context.color_primaries, context.color_trc = 1, 1, 1, 1
        voice = box.add_stream("aac", rate=rate, layout="mono")
        for nv12 in color.rgb_to_nv12(pictures, "bt709"):
            shown = av.VideoFrame.from_ndarray(np.asarray(nv12), format="nv12").reformat(format="yuv420p")
            shown.color_range, shown.colorspace = 1, 1
            box.mux(stream.encode(shown))
        box.mux(stream.encode())
        block = av.AudioFrame.from_ndarray(sound.astype(np.float32)[None], "fltp", "mono")
        block.sample_rate = rate
        box.mux([*voice.encode(block), *voice.encode()])


def main(argv: list[str] | None = None) -> None:
    import soundfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crf", type=int, default=16)
    parser.add_argument("--out", type=Path, default=store.ROOT / "nodes" / "wardrobe" / "samples")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    pictures, garment, hands = (np.stack(x) for x in zip(*map(frame, range(N_FRAMES)), strict=True))
    sound, rate = soundfile.read(store.ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac", dtype="float32")
    write_film(pictures, sound[: N_FRAMES * rate // FPS], rate, args.out / "presenter.mp4", args.crf)
    write_gray(garment, args.out / "presenter_garment.mkv")
    write_gray(hands, args.out / "presenter_hands.mkv")
    for path in sorted(args.out.iterdir()):
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
