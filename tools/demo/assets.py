"""The three demo presenters (a still and two loops), their face boxes, and the sample sentence.

The looks are chosen by hand, so no training picture has them, but every colour lies inside the range of `identity`:
lips outside it came out pale (the autoencoder never saw them). Loops are 50 frames whose motion is made of whole
periods, so the last frame leads into the first; the mouth is at rest.
"""

import argparse
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import nets as store
from . import presenter, visemes
from .identity import Look, custom, sample_looks

SIDE, FPS, N_FRAMES = 512, 25, 50
VIEW = (-1.95, -1.92, 1.95, 1.98)
SENTENCE = (
    "Good evening. This presenter was made on your own computer, and every word you hear moves these lips."
)

LOOKS = {
    "demo": dict(
        skin=(0.88, 0.68, 0.56), lip=(0.627, 0.38, 0.335), hair=(0.24, 0.15, 0.10), brow=(0.20, 0.13, 0.09),
        iris=(0.32, 0.24, 0.15), cloth=(0.16, 0.23, 0.36), shirt=(0.93, 0.93, 0.91), back_a=(0.62, 0.68, 0.73),
        back_b=(0.40, 0.46, 0.53), face_w=0.775, jaw=0.30, face_p=2.3, skull=1.27, eye_x=0.335, eye_y=-0.25,
        eye_w=0.163, eye_h=0.078, eye_tilt=0.05, brow_y=-0.465, brow_t=0.026, brow_arch=0.06, nose_w=0.125,
        nose_y=0.185, mouth_y=0.50, mouth_w=0.285, lip_u=0.066, lip_l=0.09, bow=0.55, corner=-0.035,
        hair_line=-0.86, hair_side=0.09, hair_top=0.17, part=-0.3, blush=0.07, light=-0.05, neck_w=0.39,
        shoulder=1.52, long=1.0, bald=0.0, glasses=0.0, suit=1.0, stubble=0.0, lashes=1.0, vignette=0.1,
    ),
    "demo_loop": dict(
        skin=(0.50, 0.335, 0.24), lip=(0.415, 0.222, 0.183), hair=(0.08, 0.065, 0.06), brow=(0.075, 0.06, 0.055),
        iris=(0.22, 0.14, 0.09), cloth=(0.46, 0.45, 0.43), shirt=(0.80, 0.84, 0.90), back_a=(0.70, 0.66, 0.60),
        back_b=(0.50, 0.46, 0.41), face_w=0.815, jaw=0.25, face_p=2.45, skull=1.29, eye_x=0.335, eye_y=-0.25,
        eye_w=0.158, eye_h=0.068, eye_tilt=0.0, brow_y=-0.455, brow_t=0.042, brow_arch=0.035, nose_w=0.15,
        nose_y=0.195, mouth_y=0.505, mouth_w=0.30, lip_u=0.070, lip_l=0.095, bow=0.4, corner=-0.025,
        hair_line=-0.90, hair_side=0.035, hair_top=0.09, part=0.1, blush=0.0, light=0.04, neck_w=0.48,
        shoulder=1.50, long=0.0, bald=0.0, glasses=0.0, suit=1.0, stubble=0.14, lashes=0.4, vignette=0.08,
    ),
    "demo_loop2": dict(
        skin=(0.93, 0.77, 0.69), lip=(0.666, 0.445, 0.412), hair=(0.72, 0.71, 0.69), brow=(0.42, 0.40, 0.38),
        iris=(0.36, 0.44, 0.48), cloth=(0.30, 0.38, 0.33), shirt=(0.85, 0.82, 0.78), back_a=(0.36, 0.41, 0.43),
        back_b=(0.24, 0.28, 0.30), face_w=0.80, jaw=0.23, face_p=2.3, skull=1.25, eye_x=0.34, eye_y=-0.245,
        eye_w=0.15, eye_h=0.066, eye_tilt=-0.05, brow_y=-0.455, brow_t=0.034, brow_arch=0.045, nose_w=0.155,
        nose_y=0.205, mouth_y=0.495, mouth_w=0.29, lip_u=0.055, lip_l=0.075, bow=0.35, corner=-0.03,
        hair_line=-0.95, hair_side=0.05, hair_top=0.12, part=0.35, blush=0.05, light=-0.06, neck_w=0.44,
        shoulder=1.56, long=0.0, bald=0.0, glasses=1.0, suit=0.0, stubble=0.0, lashes=0.4, vignette=0.12,
    ),
}


def look_of(name: str) -> Look:
    base = sample_looks(1, "cpu", torch.Generator().manual_seed(1))
    return custom(base, **LOOKS[name])


def loop_pose(n: int, kind: int) -> Look:
    """Whole periods over n frames, and one blink."""
    turn = 2 * np.pi * torch.arange(n, dtype=torch.float32) / n
    beat = torch.arange(n, dtype=torch.float32)
    blink = torch.exp(-(((beat - (17, 31)[kind]) / 2.2) ** 2))
    pose = {
        "dx": 0.030 * torch.sin(turn + kind), "dy": 0.012 * torch.sin(2 * turn + 0.7), "blink": blink,
        "roll": 0.018 * torch.sin(turn + 1.9 * kind), "zoom": 0.008 * torch.sin(turn + 0.4),
        "yaw": 0.55 * torch.sin(turn + 0.9 + kind), "brow": 0.006 * torch.sin(2 * turn),
        "gaze": 0.25 * torch.sin(turn + 2),
    }
    return {k: v.reshape(n, 1, 1, 1) for k, v in pose.items()}


def picture(look: Look, pose: Look, index: int, mouth: Tensor | None = None) -> np.ndarray:
    """Frame `index` as uint8 (512, 512, 3), drawn at twice the size and averaged down."""
    one = {k: v[index : index + 1] for k, v in pose.items()}
    mouth = torch.tensor([visemes.REST]) if mouth is None else mouth
    big, _ = presenter.render(look, one, mouth, torch.tensor([VIEW]), 2 * SIDE, 2 * SIDE)
    small = torch.nn.functional.avg_pool2d(big, 2)[0]
    return (small * 255).round().byte().permute(1, 2, 0).contiguous().numpy()


def boxes_of(look: Look, pose: Look) -> list[list[int]]:
    n = len(pose["dx"])
    rows = {k: v.expand(n, -1, -1, -1) for k, v in look.items()}
    corner = torch.tensor([VIEW[0], VIEW[1]]).repeat(2)
    pixels = (presenter.face_box(rows, pose) - corner) * (SIDE / (VIEW[2] - VIEW[0]))
    return [[int(v) for v in row] for row in pixels.round().tolist()]


def write_clip(frames: list[np.ndarray], path: Path, crf: int) -> None:
    """H.264 4:2:0, BT.709 limited range, tagged."""
    import av

    color = store.pack_module("nodes.core.color")
    nv12 = color.rgb_to_nv12(np.stack(frames), "bt709")
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as box:
        stream = box.add_stream("libx264", rate=Fraction(FPS), options={"crf": str(crf), "preset": "slow", "g": "50"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.color_range, context.colorspace, context.color_primaries, context.color_trc = 1, 1, 1, 1
        for picture_nv12 in nv12:
            frame = av.VideoFrame.from_ndarray(np.asarray(picture_nv12), format="nv12").reformat(format="yuv420p")
            frame.color_range, frame.colorspace = 1, 1
            box.mux(stream.encode(frame))
        box.mux(stream.encode())


def make_presenters(folder: Path, crf: int) -> None:
    import cv2

    folder.mkdir(parents=True, exist_ok=True)
    listing = {}
    for number, name in enumerate(LOOKS):
        look = look_of(name)
        still = number == 0
        pose = presenter.neutral_pose(1, "cpu") if still else loop_pose(N_FRAMES, number - 1)
        frames = [picture(look, pose, i) for i in range(len(pose["dx"]))]
        file = f"{name}.png" if still else f"{name}.mp4"
        if still:
            cv2.imwrite(str(folder / file), frames[0][..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9])
        else:
            write_clip(frames, folder / file, crf)
        listing[name] = {"file": file, "size": [SIDE, SIDE], "fps": f"{FPS}/1", "cycle": "still" if still else "loop",
                         "boxes": boxes_of(look, pose)}
        print(file, (folder / file).stat().st_size, "bytes; first box", listing[name]["boxes"][0], flush=True)
    lines = ",\n".join(f'  "{name}": {json.dumps(entry)}' for name, entry in listing.items())
    (folder / "presenters.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def make_sentence(folder: Path) -> None:
    """The sample sentence, in the speech environment: Piper joe at its calmest, 16 kHz FLAC."""
    import soundfile
    import soxr
    from piper import SynthesisConfig

    from .voices import Piper

    settings = SynthesisConfig(noise_scale=0.4, noise_w_scale=0.4, length_scale=1.0, normalize_audio=False)
    audio, rate, _ = Piper().speak_with(SENTENCE, settings)
    audio = soxr.resample(np.pad(audio, int(0.15 * rate)), rate, 16000)
    audio = audio * (0.6 / np.abs(audio).max())
    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(str(folder / "sample_sentence.flac"), audio, 16000, subtype="PCM_16")
    (folder / "sample_sentence.txt").write_text(SENTENCE + "\n", encoding="utf-8")
    print(f"sample sentence: {len(audio) / 16000:.2f} s, {(folder / 'sample_sentence.flac').stat().st_size} bytes")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("presenters", "sentence"))
    parser.add_argument("--crf", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    if args.what == "presenters":
        make_presenters(args.out or store.ROOT / "nodes" / "musetalk" / "embedded" / "presenters", args.crf)
    else:
        make_sentence(args.out or store.ROOT / "nodes" / "tts" / "samples")


if __name__ == "__main__":
    main()
