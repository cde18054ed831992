"""Measure the exported engine on held-out speech and held-out presenters, with the pack's own inference modules.

Every clip is one utterance, padded with rests, spoken by one fresh presenter that moves and blinks. The network sees
the presenter with the mouth at rest; the truth is the same frame drawn with the true mouth. Prediction and truth go
through the same measures (`measures`). A JSON holds one row a clip; the table has one line a voice.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import nets as store
from . import presenter, visemes
from .identity import sample_looks
from .measures import closed_after, correlation, measure_seam, open_pixels, psnr_frames
from .pictures import TIGHT, box_slices, dark_threshold

RATE, FPS = 16000, 25
SEEDS = {"validation": 71_000, "test": 93_000}
NOISE_RMS = 10 ** (-60 / 20)
REST_S = 0.6


def smooth_poses(n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """A gently moving head over n frames, with a blink every few seconds."""
    time = torch.arange(n, dtype=torch.float32) / FPS

    def sway(scale: float) -> Tensor:
        rate, phase = torch.rand(2, generator=generator)
        return scale * torch.sin(2 * np.pi * (0.15 + 0.35 * rate) * time + 6.28 * phase)

    pose = {"dx": sway(0.05), "dy": sway(0.03), "roll": sway(0.04), "zoom": sway(0.02), "yaw": sway(0.8)}
    beat = 2.0 + 2.0 * float(torch.rand(1, generator=generator))
    pose["blink"] = torch.exp(-(((time % beat - 0.5 * beat) / 0.09) ** 2))
    pose["brow"], pose["gaze"] = sway(0.01), sway(0.5)
    return {k: v.reshape(n, 1, 1, 1) for k, v in pose.items()}


def clips(path: Path, limit: int):
    """Utterances of a shard: audio float32 with rests of zeros around, curve with the same rests."""
    data = np.load(path)
    starts, shut = data["starts"], visemes.shut_in_silence(data["curve"], data["audio"])
    rest = int(REST_S * RATE)
    for a, b in list(zip(starts[:-1], starts[1:], strict=True))[:limit]:
        audio = np.pad(data["audio"][a:b].astype(np.float32) / 32768, rest)
        calm = np.tile(np.array([visemes.REST], np.float32), (rest // 160, 1))
        yield audio, np.concatenate([calm, shut[a // 160 : b // 160], calm])


def hear(nets, audio: np.ndarray) -> Tensor:
    """Tokens (frames, n_tokens, width) by the pack's rules, for audio up to one piece."""
    whisper = store.pack_module("nodes.musetalk.whisper")
    timeline = store.pack_module("nodes.core.timeline")
    config = nets.config
    audio = audio[: config.whisper.piece_samples]
    n = -(-len(audio) * FPS // RATE)
    mel = whisper.log_mel(torch.from_numpy(audio)[None], config.whisper.n_mels, config.whisper.piece_samples)
    states = nets.encode_audio(mel)[0, : len(audio) // 320]
    first = torch.tensor([timeline.speech_row_start(i, timeline.parse_fps(FPS)) for i in range(n)])
    index = first[:, None] + torch.arange(config.window_rows)
    valid = (index >= 0) & (index < len(states))
    return (states[index.clamp(0, len(states) - 1)] * valid[..., None, None]).flatten(1, 2)


def mouths(curve: np.ndarray, n: int) -> Tensor:
    """Curve at every frame's time, frame i at i / 25 s + 20 ms: (n, 3)."""
    at = np.minimum(np.arange(n) * (100 // FPS) + 2, len(curve) - 1)
    return torch.from_numpy(curve[at])


def draw_frames(look, pose, mouth: Tensor, view: Tensor, size: int) -> Tensor:
    """uint8 (n, size, size, 3)."""
    out = []
    for a in range(0, len(mouth), 24):
        part = slice(a, a + 24)
        one = {k: v.expand(len(mouth[part]), -1, -1, -1) for k, v in look.items()}
        picture, _ = presenter.render(one, {k: v[part] for k, v in pose.items()}, mouth[part], view[part], size, size)
        out.append((picture * 255).round().to(torch.uint8).permute(0, 2, 3, 1))
    return torch.cat(out)


def predict(nets, source: Tensor, tokens: Tensor) -> Tensor:
    out = [nets.predict(nets.encode_crops(source[a : a + 16]), tokens[a : a + 16]) for a in range(0, len(source), 16)]
    return torch.cat(out)


@torch.inference_mode()
def run_clip(nets, audio: np.ndarray, curve: np.ndarray, seed: int, seam: bool) -> tuple[dict, dict]:
    generator = torch.Generator().manual_seed(seed)
    look = sample_looks(1, "cpu", generator)
    tokens = hear(nets, audio)
    n, size = len(tokens), nets.config.crop_size
    pose, mouth = smooth_poses(n, generator), mouths(curve, n)
    rest = torch.tensor([visemes.REST], dtype=torch.float32).expand(n, 3)
    view = presenter.face_box({k: v.expand(n, -1, -1, -1) for k, v in look.items()}, pose)
    truth = draw_frames(look, pose, mouth, view, size)
    source = draw_frames(look, pose, rest, view, size)
    made = predict(nets, source, tokens)
    noise = np.random.default_rng(seed).normal(0, NOISE_RMS, len(audio)).astype(np.float32)
    noisy_tokens = hear(nets, audio + noise)
    quiet = curve_silence(curve, n)
    pick = torch.from_numpy(np.flatnonzero(quiet))
    noisy = predict(nets, source[pick], noisy_tokens[pick]) if len(pick) else made[:0]
    edge = float(dark_threshold(look))
    own, want = open_pixels(made, edge), open_pixels(truth, edge)
    trip = round_trip(nets, truth[::4])
    rows, cols = box_slices(size)
    loud = torch.from_numpy(~quiet & (mouth[:, 0].numpy() > 0.03))
    row = {
        "corr_speech": correlation(own[loud.numpy()], want[loud.numpy()]),
        "psnr_speech": psnr_frames(made[loud], truth[loud], rows, cols),
        "frames": n, "corr": correlation(own, want), "corr_curve": correlation(own, mouth[:, 0].numpy()),
        "truth_curve": correlation(want, mouth[:, 0].numpy()),
        "psnr": psnr_frames(made, truth, rows, cols), "psnr_codec": psnr_frames(trip, truth[::4], rows, cols),
        "psnr_lower": psnr_frames(made, truth, slice(64, size), slice(0, size)),
        "range": float(want.max() - want.min()),
        "closed": closed_after(own, want, quiet), "closed_noise": closed_after(open_pixels(noisy, edge), want, None),
        "silent_frames": int(quiet.sum()),
    }
    if seam:
        row.update(measure_seam(nets, look, pose, mouth, view, tokens, step=12))
    return row, {"truth": truth, "made": made, "mouth": mouth}


def curve_silence(curve: np.ndarray, n: int) -> np.ndarray:
    """Frames at least 120 ms after the truth fell silent and 120 ms before it speaks again."""
    shut = curve[:, 0] < 0.004
    need = int(0.12 * 100)
    out = np.zeros(n, bool)
    for i in range(n):
        at = i * (100 // FPS) + 2
        a, b = at - need, at + need
        out[i] = b < len(shut) and bool(shut[max(a, 0) : b].all()) and at > need
    return out


@torch.inference_mode()
def round_trip(nets, crops: Tensor) -> Tensor:
    """The autoencoder alone: the ceiling of any prediction."""
    whole = nets.network_inputs(crops)[1]
    model = store.pack_module("nodes.musetalk.model")
    return torch.cat([model.to_rgb_uint8(nets.vae(whole[a : a + 16])) for a in range(0, len(whole), 16)])


def summary(rows: list[dict]) -> dict:
    """Means over clips, silence as shares of all silent frames."""
    out = {"clips": len(rows), "frames": sum(r["frames"] for r in rows)}
    for key in ("corr", "corr_curve", "truth_curve", "psnr", "psnr_codec", "psnr_lower", "seam", "tone_abs", "corr_speech",
                "psnr_speech"):
        values = [r[key] for r in rows if r.get(key) is not None]
        out[key] = round(float(np.mean(values)), 3) if values else None
    out["corr_min"] = round(min(r["corr"] for r in rows), 3)
    silent = sum(r["silent_frames"] for r in rows)
    for key in ("closed", "closed_noise"):
        out[key] = round(sum(r[key] * r["silent_frames"] for r in rows) / max(silent, 1), 4)
    out["silent_frames"] = silent
    tones = [r["tone"] for r in rows if r.get("tone")]
    out["tone"] = [round(float(v), 2) for v in np.mean(tones, axis=0)] if tones else None
    return out


def contact_sheet(samples: list[dict], path: Path, columns: int = 14) -> None:
    """Truth over prediction, evenly chosen frames of each clip."""
    import cv2

    strips = []
    for sample in samples:
        pick = np.linspace(12, len(sample["truth"]) - 14, columns).astype(int)
        strips += [np.concatenate(list(sample[k][torch.from_numpy(pick)].numpy()), 1) for k in ("truth", "made")]
    cv2.imwrite(str(path), np.concatenate(strips)[..., ::-1])


def table(by_voice: dict[str, dict]) -> str:
    keys = ("clips", "frames", "corr", "corr_min", "corr_speech", "corr_curve", "psnr", "psnr_speech", "psnr_codec", "closed", "closed_noise",
            "seam", "tone", "tone_abs")
    lines = ["| voice | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|"]
    lines += [f"| {v} | " + " | ".join(str(row[k]) for k in keys) + " |" for v, row in by_voice.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("split", choices=SEEDS)
    parser.add_argument("--work", type=Path, default=Path(".train"))
    parser.add_argument("--voices", nargs="*", default=[])
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--model", type=Path, help="folder of another exported model")
    parser.add_argument("--name", default="")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model = store.pack_module("nodes.musetalk.model")
    nets = model.load_nets(args.model) if args.model else model.load_embedded()
    out = args.work / "eval"
    out.mkdir(parents=True, exist_ok=True)
    by_voice, every, sheet = {}, {}, []
    for path in sorted((args.work / "speech").glob(f"{args.split}_*.npz")):
        voice = path.stem.split("_", 1)[1].rsplit("_", 1)[0]
        if args.voices and voice not in args.voices:
            continue
        rows = []
        for number, (audio, curve) in enumerate(clips(path, args.clips)):
            seed = SEEDS[args.split] + 100 * len(voice) + 17 * number + sum(map(ord, voice))
            row, sample = run_clip(nets, audio, curve, seed, seam=True)
            rows.append({"seed": seed, **row})
            if number < 2:
                sheet.append(sample)
            print(voice, json.dumps({k: v for k, v in row.items() if k in ("corr", "psnr", "closed")}), flush=True)
        every[voice], by_voice[voice] = rows, summary(rows)
    name = f"{args.split}{args.name}"
    contact_sheet(sheet, out / f"{name}.png")
    (out / f"{name}.json").write_text(json.dumps({"tight_box": TIGHT, "summary": by_voice, "clips": every}, indent=1))
    print(table(by_voice))


if __name__ == "__main__":
    main()
