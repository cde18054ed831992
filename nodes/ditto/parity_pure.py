"""Ditto's pure functions against their goldens: geometry, motion stitch, crop, put-back. Float32 on the CPU always."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.parity_measure import Result, Tolerance, close, exact, some
from . import crop as crops
from .device_putback import blend_part, make_face_plates
from .drive import DriveOptions, KeypointDriver
from .geometry import (
    as_degrees,
    blink_frames,
    degrees_from_logits,
    gaze_offsets,
    pack_motion,
    rotation_matrix,
    transform_keypoints,
    unpack_motion,
)
from .motion import MotionOutput
from .parity_recipe import DittoGoldens, recipe_network
from .putback import feather_mask, put_back, warp_into

_CLOSE, _DEGREES = Tolerance(1e-5), Tolerance(1e-4)
_BLINK = re.compile(r"N=(\d+),blink_n=(\d+),open_n=(-?\d+|\[[\d, ]+\]),python_random_seed=(None|\d+)$")
_MIRROR = re.compile(r"mirror_index\(size (\d+)")
_SIZES = "check_resize(h,w,max_dim)->(h,w,flag)"


def geometry(goldens: DittoGoldens) -> Iterator[Result]:
    """Angles, rotations, the key-point transform, motion vectors, gaze, blinks."""
    data, described = goldens.tensors("geometry"), goldens.json("geometry")
    angles = data["euler.degrees_pitch_yaw_roll"]
    yield close("geometry.rotation", {"euler": (rotation_matrix(*angles.T), data["euler.rotation"])}, _CLOSE)
    degrees = {"bins": (degrees_from_logits(data["bins.logits"]), data["bins.degrees"])}
    posed, packed, back = {}, {}, {}
    cases = some(_cases(data, "kp.case"), "geometry's key-point cases")
    poses = [_pose(data, f"kp.case{case}") for case in cases]
    for case, pose in zip(cases, poses, strict=True):
        prefix = f"kp.case{case}."
        turned = {name: as_degrees(getattr(pose, name)) for name in ("pitch", "yaw", "roll")}
        degrees |= {f"{case}.{name}": (value, data[f"{prefix}deg_{name}"]) for name, value in turned.items()}
        posed[case] = (transform_keypoints(pose), data[f"{prefix}transformed"])
        plain = transform_keypoints(pose._replace(**turned))
        posed[f"{case}.degrees"] = (plain, data[f"{prefix}transformed_from_degrees"])
        vector = pack_motion(pose)
        packed[case] = (vector[0], data[f"vec.case{case}.dict_to_265"])
        packed[f"{case}.kp"] = (pack_motion(pose, True)[0], data[f"vec.case{case}.dict_to_328_with_kp"])
        for name, value in unpack_motion(vector, pose.kp)._asdict().items():
            back[f"{case}.{name}"] = (value, getattr(pose, name))
    both = MotionOutput(*(torch.cat(parts) for parts in zip(*poses, strict=True)))
    posed["batch2"] = (transform_keypoints(both), data["kp.batch2.transformed"])
    yield close("geometry.degrees", degrees, _DEGREES)
    yield close("geometry.keypoints", posed, _CLOSE)
    yield close("geometry.vectors", packed, _CLOSE)
    yield close("geometry.unpacked", back, _CLOSE)
    yield close("geometry.gaze", _gaze(data, described), _CLOSE)
    yield exact("geometry.blinks", _blinks(described["blink_idx"]))


def _gaze(data: dict[str, Tensor], described: dict[str, Any]) -> dict[str, tuple]:
    pairs = {}
    for case in some(_cases(data, "eye_delta."), "geometry's gaze cases"):
        given = described[f"eye_delta.{case}"]
        dx, dy = torch.tensor([given["dx"]]), torch.tensor([given["dy"]])
        pairs[case] = (gaze_offsets(dx, dy), data[f"eye_delta.{case}"])
    return pairs


def _blinks(cases: dict[str, Any]) -> dict[str, tuple]:
    pairs = {}
    for name, wanted in cases.items():
        found = _BLINK.match(name)
        if not found:
            raise ValueError(f"geometry.json has the blink case {name!r}, which cannot be read")
        length, gaps = int(found[2]), found[3].strip("[]").split(",")
        gaps = [int(gap) for gap in gaps] if "[" in found[3] else int(gaps[0])
        rng = None if found[4] == "None" else random.Random(int(found[4]))
        steps = blink_frames(int(found[1]), length, gaps, rng)
        pairs[name] = (len(steps), wanted["length"])
        pairs[f"{name} runs"] = (_runs(steps), wanted["nonzero_runs"])
    return pairs


def _runs(steps: list[int]) -> list[list[int]]:
    """First and last frame of every stretch without 0."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.array(steps) > 0, [0]])))
    return [[int(start), int(end) - 1] for start, end in edges.reshape(-1, 2)]


def motion_stitch(goldens: DittoGoldens) -> Iterator[Result]:
    """Every option set: key points of twelve frames, in one chunk and in chunks of five."""
    data, described = goldens.tensors("motion_stitch"), goldens.json("motion_stitch")
    net = recipe_network("stitch_network")
    names = [name for name, case in described.items() if isinstance(case, dict) and "setup" in case]
    pairs = {}
    for name in some(names, "motion_stitch's option sets"):
        for chunk in (12, 5):
            kp_source, kp_driving = _driven(data, described, described[name], net, chunk)
            pairs[f"{name}.x_s/{chunk}"] = (kp_source, data[f"{name}.x_s"])
            pairs[f"{name}.x_d/{chunk}"] = (kp_driving, data[f"{name}.x_d"])
    yield close("motion_stitch", pairs, _CLOSE, f"{len(names)} option sets")


def _driven(data: dict, described: dict, case: dict, net: Any, chunk: int) -> tuple[Tensor, Tensor]:
    setup = case["setup"]
    sources = [_pose(data, f"source{i}") for i in range(3)]
    motion, is_image = data["driving265"], setup["is_image_flag"]
    still = torch.cat([transform_keypoints(sources[0])])
    driver = KeypointDriver(
        sources[0],
        is_image,
        _options(data, described, case, sources[0]),
        net if setup["flag_stitching"] else None,
        data["d0_265"] if setup["d0"] else None,
    )
    controls = {int(frame): control for frame, control in case["frame_ctrl"].items()}
    found = []
    for first in range(0, len(motion), chunk):
        part = motion[first : first + chunk]
        frames = [sources[crops.mirror_index(first + i, 3)] for i in range(len(part))]
        moving = MotionOutput(*(torch.cat(values) for values in zip(*frames, strict=True)))
        found.append(driver(part, None if is_image else moving, first, controls))
    kp_source, kp_driving = (torch.cat(parts) for parts in zip(*found, strict=True))
    return still if is_image else kp_source, kp_driving


def _options(data: dict, described: dict, case: dict, source: MotionOutput) -> DriveOptions:
    setup = case["setup"]
    eye_offsets = data[setup["delta_eye_arr"]] if setup["delta_eye_arr"] else None
    blinks: list[int] = [0]
    if eye_offsets is not None:
        n = case["set_Nd"] or (setup["N_d"] if setup["N_d"] > 0 else 3000)
        seed = case["python_random_seed"]
        rng = None if seed is None else random.Random(seed)
        blinks = blink_frames(n, len(eye_offsets), setup["delta_eye_open_n"], rng)
    keys = setup["use_d_keys"]
    control = {k: data[v] if isinstance(v, str) else v for k, v in setup["overall_ctrl_info"].items()}
    options = DriveOptions(
        keys=tuple(keys) if isinstance(keys, list) else keys,
        relative=setup["relative_d"],
        drive_eyes=setup["drive_eye"],
        eye_offsets=eye_offsets,
        blinks=blinks,
        fade=setup["fade_type"],
        fade_keys=tuple(setup["fade_out_keys"]),
        control=control,
        as_upstream=True,
    )
    if setup["ch_info"]:
        ratio = described["ch_scale"] / source.scale[0, 0].item()
        return replace(options, scale_ratio=ratio)
    return options


def crop(goldens: DittoGoldens) -> Iterator[Result]:
    """Boxes and matrices of every number of landmarks, pixels of a crop, size rules, mirrored frames."""
    data = {key: value.numpy() for key, value in goldens.tensors("crop").items()}
    described = goldens.json("crop")
    boxes, linear, moved = {}, {}, {}
    for case in some(_cases(data, "case"), "crop's cases"):
        points, prefix = data[f"case{case}.pts"], f"case{case}."
        face = crops.face_box(points)
        around = crops.face_box(points, crops.LANDMARK_SCALE, crops.LANDMARK_SHIFT)
        long = crops.face_box(points, 1.7, (0.1, -0.05), square=False)
        boxes |= {
            f"{case}.pt2": (crops.eyes_and_mouth(points), data[f"{prefix}pt2"]),
            f"{case}.pt2_nolip": (crops.eyes_and_mouth(points, False), data[f"{prefix}pt2_nolip"]),
            f"{case}.rect": (_numbers(face), data[f"{prefix}rect_c_size_angle"]),
            f"{case}.nonsquare": (_numbers(long), data[f"{prefix}rect_nonsquare_vx"]),
            f"{case}.bbox": (around.corners(upright=True), data[f"{prefix}bbox"]),
            f"{case}.bbox_rot": (around.corners(), data[f"{prefix}bbox_rot"]),
        }
        matrices = {
            "crop512": crops.crop_matrices(face),
            "crop512_vx": crops.crop_matrices(face),  # upstream drops the shift along the face
            "crop512_norot": crops.crop_matrices(face, rotate=False),
            "lmk224": crops.crop_matrices(around, crops.LANDMARK_SIZE),
        }
        for name, both in matrices.items():
            _matrix_pairs(f"{prefix}{name}", both, data, linear, moved)
        first = crops.move_points(points, matrices["crop512"].o2c)[:8]
        moved[f"{case}.points"] = (first, data[f"{prefix}crop512.pt_crop_first8"])
    flat = crops.crop_matrices(crops.face_box(data["degenerate.pts"]))
    _matrix_pairs("degenerate", flat, data, linear, moved)
    yield close("crop.boxes", boxes, Tolerance(2e-3))
    yield close("crop.matrices", linear, Tolerance(1e-5))
    yield close("crop.translations", moved, Tolerance(2e-3))
    yield from _crop_pixels(data)
    sizes = {str(row[:3]): (list(crops.working_size(*row[:3])), row[3:5]) for row in described[_SIZES]}
    yield exact("crop.sizes", sizes)
    mirrors = {}
    for name, wanted in described.items():
        if found := _MIRROR.match(name):
            own = [crops.mirror_index(i, int(found[1])) for i in range(len(wanted))]
            mirrors[name] = (own, wanted)
    yield exact("crop.mirrored", mirrors)


def _matrix_pairs(name: str, found: crops.CropMatrices, data: dict, linear: dict, moved: dict) -> None:
    for side, matrix in (("o2c", found.o2c), ("c2o", found.c2o)):
        expected = data[f"{name}.M_{side}"]
        linear[f"{name}.{side}"] = (matrix[:, :2], expected[:, :2])
        moved[f"{name}.{side}"] = (matrix[:, 2], expected[:, 2])


def _crop_pixels(data: dict[str, np.ndarray]) -> Iterator[Result]:
    y, x = np.mgrid[0:480, 0:640]
    check = ((x // 16 + y // 16) % 2) * 200 + 20
    picture = np.rint(np.stack([x * 255 / 639, y * 255 / 479, check], -1)).astype(np.uint8)
    matrices = crops.CropMatrices(data["image.M_o2c"], data["image.M_c2o"])
    cut = crops.crop_picture(picture, matrices)
    small = crops.network_input(cut)[:, :, 1::8, 2::8]
    limit = Tolerance(4, share=0.02)
    yield close("crop.pixels", {"crop512": (cut[3::8, 5::8], data["image.crop512_sub"])}, limit)
    yield close("crop.input", {"bchw256": (small, data["image.bchw256_sub"])}, Tolerance(4 / 255))


def putback(goldens: DittoGoldens) -> Iterator[Result]:
    """The mask, the mask warped into the frame, and the frame with a face in it."""
    data = {key: value.numpy() for key, value in goldens.tensors("putback").items()}
    mask = feather_mask()
    parts = {
        "row256": mask[256],
        "col256": mask[:, 256],
        "sub": mask[::8, ::8],
        "top_left_32x32": mask[:32, :32],
        "bottom_right_32x32": mask[-32:, -32:],
    }
    pairs = {name: (value, data[f"mask.{name}"]) for name, value in parts.items()}
    pairs["64x48"] = (feather_mask(64, 48, (0.8, 0.5)), data["mask_w64_h48_rw0.8_rh0.5"])
    yield close("putback.mask", pairs, Tolerance(1e-6))
    y, x = np.mgrid[0:512, 0:512].astype(np.float32)
    face = np.stack(
        [127.5 + 127.5 * np.sin(x / 23), 127.5 + 127.5 * np.cos(y / 31), (x + y) / 1022 * 255], -1
    )
    frame, warped, results, on_device = data["frame"], {}, {}, {}
    for case in some(_cases(data, "case"), "putback's cases"):
        c2o, wanted = data[f"case{case}.M_c2o"], data[f"case{case}.out"]
        whole = (0, 0, frame.shape[1], frame.shape[0])
        weight = warp_into(mask, c2o, whole).clip(0, 1)[::5, ::5]
        warped[case] = (weight, data[f"case{case}.mask_warped_sub"])
        results[case] = (put_back(frame, face.astype(np.float32), c2o, mask), wanted)
        on_device[case] = (_put_back_on(goldens.device, frame, face, c2o), wanted)
    yield close("putback.warped_mask", warped, Tolerance(1e-3))
    yield close("putback.frames", results, Tolerance(1, share=0.03))
    yield close("putback.device", on_device, Tolerance(1, share=0.03), goldens.device)


def _put_back_on(device: str, frame: np.ndarray, face: np.ndarray, c2o: np.ndarray) -> np.ndarray:
    plates = make_face_plates([frame], [c2o], len(face), "bt709").to(device)
    faces = torch.from_numpy(face.astype(np.float32) / 255).permute(2, 0, 1)[None].to(device)
    part, _ = blend_part(faces, plates, torch.zeros(1, dtype=torch.int64, device=device))
    out, (x, y) = frame.copy(), plates.corner[0].tolist()
    out[y : y + part.shape[1], x : x + part.shape[2]] = part[0].cpu().numpy()
    return out


def _cases(data: dict[str, Any], prefix: str) -> list[str]:
    """Numbers of the cases in the names that begin with `prefix`."""
    found = {m[1] for key in data if (m := re.match(re.escape(prefix) + r"(\d+)(?:\.|$)", key))}
    return sorted(found, key=int)


def _pose(data: dict[str, Tensor], prefix: str) -> MotionOutput:
    return MotionOutput(*(data[f"{prefix}.{name}"] for name in MotionOutput._fields))


def _numbers(box: crops.FaceBox) -> list[float]:
    return [*box.centre, *box.size, box.angle]
