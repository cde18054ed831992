"""Measure the exported engine on held-out speech, voices and faces, with the pack's own modules.

A clip is one utterance with 0.6 s of digital silence around it and one presenter, never drawn in training, as a still with
the mouth at rest. Whole path: sound -> speech encoder -> LMDM, 4 steps -> KeypointDriver -> warp -> decode. The motion that
comes out says where the head is, so the truth is drawn with that head, those lids and the TRUE mouth, and prediction and
truth go through the same measures:
  corr: dark pixels in the mouth's box (it follows the head) against those of the truth; corr_speech: over frames with
  an open mouth; corr_curve: against the true curve; closed: share of frames, from 120 ms into silence until 120 ms before
  speech, under 10 % of the clip's range of opening; psnr: of the whole crop and of the mouth's box; identity: mean
  absolute difference to the truth outside mouth and eyes, 8-bit levels; yaw, pitch, roll (degrees) and t (shares of half
  the crop): standard deviation over a clip; jerk: largest second difference of yaw a frame, degrees.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from demo import nets as store
from demo import presenter, visemes
from demo.evaluate import clips, curve_silence, mouths, psnr_frames
from demo.identity import sample_looks
from demo.measures import closed_after, correlation
from demo.pictures import dark_threshold
from torch import Tensor

from . import motion_stage, pictures, space
from .export import FOLDER
from .picture_stage import pose_of

RATE, FPS, SIZE = 16000, 25, 256
SEEDS = {"validation": 171_000, "test": 193_000}
NOISE_RMS = 10 ** (-60 / 20)


class Engine:
    """The networks with the parts of the pack around them."""

    def __init__(self, folder: Path = FOLDER, guidance: float | None = None):
        model = store.pack_module("nodes.ditto.model")
        modules = model.load_modules(folder)
        self.nets, self.lmdm, self.speech = modules.nets, modules.lmdm, modules.speech
        if guidance is not None:
            object.__setattr__(self.lmdm.config, "guidance", guidance)
        self.fast = store.pack_module("nodes.ditto.fast").FastNets(self.nets)

    def rows(self, audio: np.ndarray) -> Tensor:
        hubert = store.pack_module("nodes.ditto.hubert")
        rows = hubert.SpeechRows(lambda x: self.speech(torch.from_numpy(x)[None])[0].numpy(), width=self.speech.config.width)
        return torch.cat([rows.feed(audio), rows.finish()])

    def motion(self, rows: Tensor, source, seed: int, emotion: int = motion_stage.NEUTRAL) -> Tensor:
        """Motion vectors (n, 265), smoothed as the pack does."""
        stream = store.pack_module("nodes.ditto.audio2motion")
        condition = store.pack_module("nodes.ditto.condition")
        schedule = store.pack_module("nodes.ditto.schedule")
        geometry = store.pack_module("nodes.ditto.geometry")
        face = condition.FaceShape(torch.full((1, 2), 0.8), torch.zeros(1, 6), source.kp[0])
        vector = geometry.pack_motion(source)[0]
        noise = schedule.MotionNoise(seed, schedule.DEFAULT_STEPS, 1.0, (stream.WINDOW, len(vector)))
        maker = stream.MotionStream(stream.MotionSampler(self.lmdm, noise), condition.Condition(face, emotion),
                                    stream.WindowScheme(), vector)
        return torch.cat([maker.feed(rows), maker.finish()])

    def drive(self, motion: Tensor, source, relative: bool = True):
        """Source key points, driving ones before and after stitching."""
        drive = store.pack_module("nodes.ditto.drive")
        made = []
        for stitch in (None, self.nets.stitch):
            driver = drive.KeypointDriver(source, True, drive.DriveOptions(relative=relative), stitch)
            made.append(driver(motion))
        return made[0][0], made[0][1], made[1][1]

    def render(self, volume: Tensor, kp_source: Tensor, kp_driving: Tensor) -> Tensor:
        """uint8 (n, S, S, 3)."""
        out = []
        for a in range(0, len(kp_driving), 8):
            n = len(kp_driving[a : a + 8])
            made = self.fast(volume.expand(n, -1, -1, -1, -1), kp_source.expand(n, -1, -1), kp_driving[a : a + 8])
            out.append((made * 255).round().to(torch.uint8).permute(0, 2, 3, 1))
        return torch.cat(out)


def head_of(motion: Tensor, source, truth_source: Tensor) -> Tensor:
    """Where the head is in every frame, (n, 7) as `space.head`: the truth of the source and the change since frame 0."""
    geometry = store.pack_module("nodes.ditto.geometry")
    moved = geometry.unpack_motion(motion, source.kp)
    degrees = torch.stack([geometry.degrees_from_logits(a) for a in (moved.pitch, moved.yaw, moved.roll)], 1)
    change = torch.cat([degrees, moved.t], 1)
    return torch.cat([truth_source[:, :6] + change - change[:1], truth_source[:, 6:].expand(len(motion), 1)], 1)


def eye_params(motion: Tensor) -> Tensor:
    """blink, gaze, brow of every frame relative to the first, (n, 3), by least squares on the eyes' key points."""
    basis = torch.tensor(space.BASIS)[4:]
    return (motion[:, 202:] - motion[:1, 202:]) @ torch.linalg.pinv(basis)


def draw(look, pose, mouth: Tensor, view: Tensor, smile: Tensor | None = None) -> Tensor:
    out = []
    for a in range(0, len(mouth), 16):
        part = slice(a, a + 16)
        n = len(mouth[part])
        one = {k: v.expand(n, -1, -1, -1) for k, v in look.items()}
        if smile is not None:
            one = space.with_smile(one, smile[part])
        picture, _ = presenter.render(one, {k: v[part] for k, v in pose.items()}, mouth[part], view.expand(n, -1), SIZE, SIZE)
        out.append((picture * 255).round().to(torch.uint8).permute(0, 2, 3, 1))
    return torch.cat(out)


def open_share(pictures_: Tensor, edge: float, place: Tensor) -> np.ndarray:
    """Dark pixels in the mouth's box, share of the box, for uint8 (n, S, S, 3) and centres (n, 2) in -1..1."""
    x, y = pictures.pixel_grid(pictures_.shape[1], "cpu")
    level = presenter.luma(pictures_.permute(0, 3, 1, 2).float() / 255)
    inside = ((x - place[:, 0, None, None, None]).abs() < pictures.MOUTH_BOX[0]) & (
        (y - place[:, 1, None, None, None]).abs() < pictures.MOUTH_BOX[1])
    return ((level < edge) & inside[:, 0]).float().sum(dim=(1, 2)).div(inside[:, 0].sum(dim=(1, 2))).numpy().astype(np.float64)


def source_of(seed: int):
    """A new face at rest in its own crop: look, view (1, 5), true head (1, 7), picture uint8 (1, S, S, 3)."""
    generator = torch.Generator().manual_seed(seed)
    look = sample_looks(1, "cpu", generator)
    pose = {**presenter.neutral_pose(1, "cpu"), "pitch": torch.zeros(1, 1, 1, 1)}
    for name, size in (("dx", 0.05), ("dy", 0.03), ("roll", 0.03), ("yaw", 0.6), ("pitch", 0.5)):
        pose[name] = size * (2 * torch.rand(1, 1, 1, 1, generator=generator) - 1)
    view = space.view_of(pose)
    rest = torch.tensor([visemes.REST])
    return look, view, space.head(pose, view), draw(look, pose, rest, view)


@torch.inference_mode()
def run_clip(engine: Engine, audio: np.ndarray, curve: np.ndarray, seed: int, noisy: bool = True) -> tuple[dict, dict]:
    look, view, head0, picture = source_of(seed)
    crop = picture.permute(0, 3, 1, 2).float() / 255
    source, volume = engine.nets.motion(crop), engine.nets.appearance(crop)
    motion = engine.motion(engine.rows(audio), source, seed)
    n = len(motion)
    kp_source, _, kp_driving = engine.drive(motion, source)
    made = engine.render(volume, kp_source, kp_driving)
    head, mouth = head_of(motion, source, head0), mouths(curve, n)
    eyes = eye_params(motion)
    params = torch.cat([mouth, torch.zeros(n, 1), eyes], 1)
    truth = draw(look, space.head_pose(head, view.expand(n, -1), params), mouth, view)
    posed = store.pack_module("nodes.ditto.geometry").transform_keypoints
    bare = posed(pose_of(head, torch.zeros(n, 63), space.keypoints(look).expand(n, -1)))
    place, edge = pictures.mouth_place(bare), float(dark_threshold(look))
    own, want = open_share(made, edge, place), open_share(truth, edge, place)
    quiet = curve_silence(curve, n)
    loud = ~quiet & (mouth[:, 0].numpy() > 0.03)
    weight = pictures.weight_map(bare, SIZE)[:, 0]
    plain = (weight < 1.2 * weight.amin(dim=(1, 2), keepdim=True))[..., None]
    off = ((made.float() - truth.float()).abs() * plain).sum() / (3 * plain.sum())
    row = {
        "frames": n, "corr": correlation(own, want), "corr_speech": correlation(own[loud], want[loud]),
        "corr_curve": correlation(own, mouth[:, 0].numpy()), "truth_curve": correlation(want, mouth[:, 0].numpy()),
        "slope": float(np.polyfit(want, own, 1)[0]), "closed": closed_after(own, want, quiet), "silent_frames": int(quiet.sum()),
        "psnr": psnr_frames(made, truth, slice(0, SIZE), slice(0, SIZE)), "psnr_mouth": _box_psnr(made, truth, place),
        "identity": float(off), "yaw": float(head[:, 1].std()), "pitch": float(head[:, 0].std()),
        "roll": float(head[:, 2].std()), "t": float(head[:, 3:5].std(0).norm()),
        "jerk": float((head[2:, 1] - 2 * head[1:-1, 1] + head[:-2, 1]).abs().max()), "blink": float(eyes[:, 0].max()),
    }
    if noisy:
        noise = np.random.default_rng(seed).normal(0, NOISE_RMS, len(audio)).astype(np.float32)
        rough = engine.motion(engine.rows(audio + noise), source, seed)
        lips = rough[:, 202:].unflatten(1, (21, 3))[:, 12, 1] - rough[0, 202 + 37]
        clean = motion[:, 202:].unflatten(1, (21, 3))[:, 12, 1]
        row["closed_noise"] = float((lips.numpy()[quiet] < 0.1 * float(clean.max() - clean.min())).mean()) if quiet.any() else 1.0
    return row, {"source": picture, "truth": truth, "made": made, "head": head, "own": own, "want": want}


def _box_psnr(made: Tensor, truth: Tensor, place: Tensor) -> float:
    x, y = pictures.pixel_grid(SIZE, "cpu")
    inside = ((x - place[:, 0, None, None, None]).abs() < pictures.MOUTH_BOX[0]) & (
        (y - place[:, 1, None, None, None]).abs() < pictures.MOUTH_BOX[1])
    inside = inside[:, 0, ..., None]
    error = ((made.float() - truth.float()).square() * inside).sum(dim=(1, 2, 3)) / (3 * inside.sum(dim=(1, 2, 3)))
    return float((10 * torch.log10(255.0**2 / error.clamp(min=1e-2))).mean())


KEYS = ("corr", "corr_speech", "corr_curve", "truth_curve", "slope", "closed", "closed_noise", "psnr", "psnr_mouth", "identity",
        "yaw", "pitch", "roll", "t", "jerk", "blink")


def summary(rows: list[dict]) -> dict:
    out = {"clips": len(rows), "frames": sum(r["frames"] for r in rows), "corr_min": round(min(r["corr"] for r in rows), 3)}
    for key in KEYS:
        out[key] = round(float(np.mean([r[key] for r in rows])), 3)
    out["jerk"] = round(max(r["jerk"] for r in rows), 3)
    return out


def table(by_voice: dict[str, dict]) -> str:
    keys = ("clips", "frames", "corr", "corr_min", *KEYS[1:])
    lines = ["| voice | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|"]
    lines += [f"| {v} | " + " | ".join(str(row[k]) for k in keys) + " |" for v, row in by_voice.items()]
    return "\n".join(lines)


def contact_sheet(samples: list[dict], path: Path, columns: int = 8) -> None:
    """Per clip two rows: source and truth, source and result; evenly chosen frames."""
    import cv2

    strips = []
    for sample in samples:
        pick = torch.from_numpy(np.linspace(12, len(sample["truth"]) - 14, columns).astype(int))
        strips += [np.concatenate([sample["source"][0].numpy(), *sample[k][pick].numpy()], 1) for k in ("truth", "made")]
    cv2.imwrite(str(path), np.concatenate(strips)[..., ::-1])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("split", choices=SEEDS)
    parser.add_argument("--work", type=Path, default=Path(".train"))
    parser.add_argument("--voices", nargs="*", default=[])
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--model", type=Path, default=FOLDER, help="folder of another exported model")
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--name", default="")
    args = parser.parse_args(argv)
    torch.set_flush_denormal(True)
    engine = Engine(args.model, args.guidance)
    by_voice, every, sheet = {}, {}, []
    for path in sorted((args.work / "speech").glob(f"{args.split}_*.npz")):
        voice = path.stem.split("_", 1)[1].rsplit("_", 1)[0]
        if args.voices and voice not in args.voices:
            continue
        rows = []
        for number, (audio, curve) in enumerate(clips(path, args.clips)):
            seed = SEEDS[args.split] + 100 * len(voice) + 17 * number + sum(map(ord, voice))
            row, sample = run_clip(engine, audio, curve, seed)
            rows.append({"seed": seed, **row})
            sheet.append(sample) if number < 3 else None
            print(voice, json.dumps({k: round(v, 3) for k, v in row.items()}), flush=True)
        every[voice], by_voice[voice] = rows, summary(rows)
    out = args.work / "eval"
    out.mkdir(parents=True, exist_ok=True)
    contact_sheet(sheet, out / f"ditto_{args.split}{args.name}.png")
    (out / f"ditto_{args.split}{args.name}.json").write_text(json.dumps({"summary": by_voice, "clips": every}, indent=1))
    print(table(by_voice))


if __name__ == "__main__":
    main()
