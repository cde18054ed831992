"""Ditto's weights that ship with the pack: lips that follow speech they never heard and close in silence, a head that moves.

The clips (tools/ditto_demo/golden.py) are test sentences of a trained voice and of a voice the training never heard, each with a
presenter that no training picture showed, as a still. The whole path runs: sound, speech encoder, four steps of the diffusion,
key points, warp, decoder. Opening is the share of dark pixels in a box at the mouth, which follows the head; the truth was
counted alike in drawn pictures.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import pytest
import soundfile
import torch

from talkinghead.nodes.ditto.audio2motion import MotionSampler, MotionStream, WindowScheme
from talkinghead.nodes.ditto.condition import EMOTIONS, NEUTRAL, Condition, FaceShape
from talkinghead.nodes.ditto.drive import DriveOptions, KeypointDriver
from talkinghead.nodes.ditto.fast import FastNets
from talkinghead.nodes.ditto.geometry import degrees_from_logits, pack_motion, unpack_motion
from talkinghead.nodes.ditto.hubert import SpeechRows
from talkinghead.nodes.ditto.model import EMBEDDED_DIR, load_modules
from talkinghead.nodes.ditto.schedule import DEFAULT_STEPS, MotionNoise

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "embedded_ditto"
CLIPS = ("trained_voice", "unseen_voice")
MIN_CORRELATION = 0.75
STEP = 4  # every fourth frame is drawn: a quarter of the time, the same verdicts
MOUTH_BELOW_CORNERS = 0.04
LUMA = torch.tensor([0.299, 0.587, 0.114])
CORNERS = [14, 17]


@lru_cache(maxsize=1)
def modules():
    return load_modules(EMBEDDED_DIR)


@lru_cache(maxsize=2)
def clip(name: str) -> tuple[dict, np.ndarray, torch.Tensor]:
    """Facts, audio, the source's crop (1, 3, 256, 256)."""
    facts = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    audio, rate = soundfile.read(GOLDEN / f"{name}.flac", dtype="float32")
    assert rate == 16000
    crop = cv2.imread(str(GOLDEN / f"{name}.png"))[..., ::-1].copy()
    return facts, audio, torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 255


@torch.inference_mode()
def motion_of(audio: np.ndarray, crop: torch.Tensor, emotion: int = NEUTRAL, seed: int = 1):
    """The source's pose and the motion vectors (n, 265)."""
    net = modules()
    rows = SpeechRows(
        lambda x: net.speech(torch.from_numpy(x)[None])[0].numpy(), width=net.config.speech_width
    )
    speech = torch.cat([rows.feed(audio), rows.finish()])
    source = net.nets.motion(crop)
    vector = pack_motion(source)[0]
    scheme = WindowScheme()
    noise = MotionNoise(seed, DEFAULT_STEPS, 1.0, (scheme.window, len(vector)))
    face = FaceShape(torch.full((1, 2), 0.8), torch.zeros(1, 6), source.kp[0])
    stream = MotionStream(MotionSampler(net.lmdm, noise), Condition(face, emotion), scheme, vector)
    return source, torch.cat([stream.feed(speech), stream.finish()])


@lru_cache(maxsize=2)
def spoken(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The clip's motion (n, 265) and share of dark pixels at the mouth of every STEP-th frame."""
    facts, audio, crop = clip(name)
    source, motion = motion_of(audio, crop)
    net = modules().nets
    kp_source, kp_driving = KeypointDriver(source, True, DriveOptions(), net.stitch)(motion)
    picked = kp_driving[::STEP]
    with torch.inference_mode():
        volume, draw = net.appearance(crop), FastNets(net)
        faces = [
            draw(volume.expand(len(kp), -1, -1, -1, -1), kp_source.expand(len(kp), -1, -1), kp)
            for kp in picked.split(8)
        ]
    return motion, opening(torch.cat(faces), picked, facts)


def opening(faces: torch.Tensor, keypoints: torch.Tensor, facts: dict) -> np.ndarray:
    size = faces.shape[-1]
    at = (torch.arange(size) + 0.5) * (2 / size) - 1
    middle = keypoints[:, CORNERS, :2].mean(1)
    across = (at - middle[:, :1]).abs() < facts["box"][0]
    down = (at - middle[:, 1:] - MOUTH_BELOW_CORNERS).abs() < facts["box"][1]
    inside = down[:, :, None] & across[:, None]
    dark = (torch.einsum("bchw,c->bhw", faces, LUMA) * 255 < facts["dark_below"]) & inside
    return (dark.sum(dim=(1, 2)) / inside.sum(dim=(1, 2))).numpy()


def lips(motion: torch.Tensor) -> np.ndarray:
    """How far the lower lip's middle (key point 12) lies below its place at rest."""
    return motion[:, 202 + 3 * 12 + 1].numpy()


@pytest.mark.parametrize("name", CLIPS)
def test_lips_follow_speech_that_was_never_heard(name):
    facts, _, _ = clip(name)
    motion, share = spoken(name)
    assert len(motion) == len(facts["open"])
    assert np.corrcoef(share, facts["open"][::STEP])[0, 1] >= MIN_CORRELATION


@pytest.mark.parametrize("name", CLIPS)
def test_the_mouth_is_shut_in_silence(name):
    facts, _, _ = clip(name)
    truth, (_, share) = np.array(facts["open"]), spoken(name)
    quiet = [i // STEP for i in facts["quiet_frames"] if i % STEP == 0]
    assert len(quiet) >= 5
    assert share[quiet].max() < truth.min() + 0.1 * (truth.max() - truth.min())


def test_the_head_moves_smoothly_and_stays_near_the_source():
    source, motion = motion_of(clip("trained_voice")[1], clip("trained_voice")[2])
    pose = unpack_motion(motion, source.kp)
    yaw, roll = degrees_from_logits(pose.yaw), degrees_from_logits(pose.roll)
    assert yaw.max() - yaw.min() > 0.7
    assert roll.max() - roll.min() > 0.2
    assert pose.t[:, :2].amax(0).sub(pose.t[:, :2].amin(0)).max() > 0.01
    assert (yaw[2:] - 2 * yaw[1:-1] + yaw[:-2]).abs().max() < 0.5
    assert max(yaw.abs().max(), roll.abs().max()) < 15


def test_a_seed_is_a_motion_and_another_seed_another():
    _, audio, crop = clip("unseen_voice")
    first, again, other = (motion_of(audio, crop, seed=seed)[1] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    yaw = [degrees_from_logits(m[:, 67:133]) for m in (first, other)]
    assert (yaw[0] - yaw[1]).abs().max() > 0.3
    assert np.corrcoef(lips(first), lips(other))[0, 1] > 0.95  # what is said decides the lips


def test_happiness_raises_the_corners_of_the_mouth_and_sadness_lowers_them():
    _, audio, crop = clip("trained_voice")
    height = {}
    for name in ("happy", "neutral", "sad"):
        motion = motion_of(audio, crop, EMOTIONS.index(name))[1]
        height[name] = -motion[20:, [202 + 3 * k + 1 for k in CORNERS]].mean().item()
    assert height["happy"] > height["neutral"] + 0.01
    assert height["sad"] < height["neutral"] - 0.01


def test_the_source_is_kept_where_nothing_moves():
    _, _, crop = clip("unseen_voice")
    net = modules().nets
    with torch.inference_mode():
        pose = net.motion(crop)
        kp_source, kp_driving = KeypointDriver(pose, True, DriveOptions(), net.stitch)(pack_motion(pose))
        made = net(net.appearance(crop), kp_source, kp_driving)
    assert -10 * torch.log10((made - crop).square().mean()) > 28


def test_the_weights_are_small_and_finite():
    assert (EMBEDDED_DIR / "model.safetensors").stat().st_size <= 15_000_000
    assert all(bool(p.isfinite().all()) for p in modules().parameters())
