"""Parity of what happens to pictures without a network: boxes, masks, blends, crops, landmark pre- and post-processing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..core.blend import composite, crop_geometry, face_crop
from ..core.parity_measure import Result, Tolerance, close, exact, not_run, some
from . import dwpose, masks
from .boxes import NO_FACE, add_margin, face_box, range_text
from .parity_recipe import Goldens, crc32, synthetic_face, synthetic_frame

CROP_SIDE = 256
_WARP = Tolerance(5, share=0.03)
"""OpenCV 5 warps differently from the 4.9 of the goldens."""
_SIMCC = Tolerance(5e-4)
_ROUNDED = Tolerance(1e-4)


def bbox_cases(goldens: Goldens) -> Iterator[Result]:
    """Boxes of v1.0 and v1.5, fallbacks, placeholders and the printed range."""
    described, pairs = goldens.json("bbox_cases"), {}
    for case in some(described["cases"], "cases"):
        for key, value in _bbox_case(case).items():
            pairs[f"{case['name']}: {key}"] = (value, case.get(key))
    case = described["sequence"]
    points = [np.array(p) for p in some(case["face68"], "face68 of sequence")]
    boxes = [_as_list(face_box(p, case["detector_box"], case["bbox_shift"])) for p in points]
    text = range_text(points, case["bbox_shift"])
    pairs["sequence: boxes"] = (boxes, case["bbox_v1"])
    pairs["sequence: range"] = (text, case["range_text"])
    total = f"Total frame:\u300c{len(points)}\u300d Manually adjust range : {text}"
    pairs["sequence: total"] = (total, case["get_bbox_range_text"])
    yield exact("bbox_cases", pairs, f"{len(described['cases'])} cases and a sequence")


def _bbox_case(case: dict) -> dict:
    points, (height, width) = np.array(case["face68"]), case["frame_hw"]
    found = face_box(points, case["detector_box"], case["bbox_shift"])
    own = {"bbox_v1": _as_list(found), "used_detector_box": found is not None and found.from_detector}
    if found is None:
        try:
            range_text([], case["bbox_shift"])
        except ValueError:
            own["alone_raises"] = "ZeroDivisionError"
        return own
    x1, y1, x2, y2 = add_margin(found.box, height)
    crop = np.empty((height, width), bool)[y1:y2, x1:x2]
    text = range_text([points], case["bbox_shift"])
    return {
        **own,
        "bbox_v15_margin10": [x1, y1, x2, y2],
        "crop_shape_v15": list(crop.shape),
        "range_text": text,
    }


def _as_list(found) -> list:
    return list(NO_FACE if found is None else found.box)


def face_parsing(goldens: Goldens) -> Iterator[Result]:
    """Kernels, cheek columns and the mask of every stored label map, mode and pair of cheek widths."""
    data = goldens.arrays("face_parsing")
    pairs = {
        "kernel": (masks.dilation_kernel(), data["kernel"]),
        "cheek_kernel": (masks.cheek_kernel(), data["cheek_kernel"]),
    }
    for key, expected in data.items():
        if found := re.fullmatch(r"cheek_mask_(\d+)_(\d+)", key):
            columns = masks.cheek_columns(int(found[1]), int(found[2])) * np.uint8(255)
            pairs[key] = (np.broadcast_to(columns, expected.shape), expected)
        elif found := re.fullmatch(r"parse_(\w+?)_(raw|neck|jaw)(?:_(\d+)_(\d+))?", key):
            cheeks = (int(found[3]), int(found[4])) if found[3] else masks.DEFAULT_CHEEKS
            pairs[key] = (masks.mode_mask(data[f"map_{found[1]}"], found[2], cheeks), expected)
    some([key for key in pairs if key.startswith("parse_")], "the list of parse_* arrays")
    yield exact("face_parsing", pairs, f"{len(pairs)} arrays")


def mode_mask(goldens: Goldens, case: dict) -> np.ndarray:
    """Return the 512 x 512 mask of a blend case, out of the stored label maps."""
    labels = goldens.arrays("face_parsing")[f"map_{case['map']}"]
    return masks.mode_mask(labels, case["mode"], tuple(case["cheek"]))


def blended(frame: np.ndarray, face: np.ndarray, box: list[int], mask: np.ndarray) -> np.ndarray:
    """Return a copy of `frame` with `face` blended into `box` by the mask over its crop square."""
    out = frame.copy()
    composite(out, face, tuple(box), crop_geometry(tuple(box)), mask)
    return out


def _resized(face: np.ndarray, box: list[int]) -> np.ndarray:
    import cv2

    return cv2.resize(face, (box[2] - box[0], box[3] - box[1]), interpolation=cv2.INTER_LINEAR)


def blend_cases(goldens: Goldens) -> Iterator[Result]:
    """Masks and composited frames of every case in both of upstream's paths, and the synthetic pictures."""
    described = goldens.json("blend_cases")
    pairs = _synthetic_pairs(goldens, described)
    cases = some([case for case in described["cases"] if "lanczos4" not in case], "cases")
    for case in cases:
        cheek = "/".join(map(str, case["cheek"]))
        label = f"{case['box']} {case['mode']} {cheek} {case['map']}"
        own = _blend_case(goldens, case, described["expand"], described["upper_boundary_ratio"])
        pairs |= {f"{label}: {key}": (value, case[key]) for key, value in own.items()}
    yield exact("blend_cases", pairs, f"{len(cases)} cases")


def _synthetic_pairs(goldens: Goldens, described: dict) -> dict[str, tuple]:
    maps, pairs = goldens.arrays("face_parsing"), {}
    for name, expected in described["image_crc32"].items():
        pairs[name] = (crc32(_picture(name, maps)), expected)
    for name, samples in described["image_samples"].items():
        picture = _picture(name, maps)
        for place, expected in samples.items():
            y, x = re.fullmatch(r"y(\d+)x(\d+)", place).groups()
            pairs[f"{name} {place}"] = (picture[int(y), int(x)].tolist(), expected)
    return pairs


def _picture(name: str, maps: dict[str, np.ndarray]) -> np.ndarray:
    if name.startswith("parse_"):
        return maps[f"map_{name.removeprefix('parse_')}"]
    kind, k = name.split("_k")
    return synthetic_frame(k=int(k)) if kind == "frame" else synthetic_face(int(k))


def _blend_case(goldens: Goldens, case: dict, expand: float, upper_ratio: float) -> dict:
    frame, face, box = synthetic_frame(k=case["frame_k"]), synthetic_face(case["frame_k"]), case["face_box"]
    crop, mask = crop_geometry(tuple(box), expand), mode_mask(goldens, case)
    own = {
        "crop_box": list(crop[:4]),
        "parser_input_crc32": crc32(masks.parser_input(masks.crop_square(frame[..., ::-1], crop))),
        "resized_face_crc32": crc32(_resized(face, box)),
    }
    for path, blur in (("offline", masks.BLUR_OFFLINE), ("realtime", masks.BLUR_REALTIME)):
        soft = masks.blend_mask(mask, crop, blur, upper_ratio)
        out = blended(frame, face, box, soft)
        own[f"kernel_{path}"] = masks.blur_kernel(crop[2] - crop[0], blur)
        own[f"{path}_frame_crc32"] = crc32(out)
        own[f"{path}_frame_sum"] = int(out.sum())
        own[f"changed_pixels_{path}"] = int((out != frame).any(2).sum())
    own |= {"mask_realtime_crc32": crc32(soft), "mask_sum": int(soft.sum())}
    return {**own, "mask_nonzero": int((soft > 0).sum())}


def blend_arrays(goldens: Goldens) -> Iterator[Result]:
    """The stored pictures of some blend cases, value by value."""
    data, pairs, inputs = goldens.arrays("blend_arrays"), {}, {}
    cases = {}
    for case in goldens.json("blend_cases")["cases"]:
        if "lanczos4" not in case and case["cheek"] == [90, 90] and case["map"] == "ellipse":
            cases[f"{case['box']}_{case['mode']}"] = case
    for name in sorted({key.partition("__")[0] for key in data}):
        case = cases[name]
        own = _blend_pictures(goldens, case, data[f"{name}__region_xyxy"])
        for part, value in own.items():
            key = f"{name}__{part}"
            if key in data:
                (inputs if part == "parser_input_every8" else pairs)[key] = (value, data[key])
    yield exact("blend_arrays", pairs, f"{len(pairs)} arrays")
    if inputs:
        yield close("blend_arrays.parser_input", inputs, Tolerance(1e-6))


def _blend_pictures(goldens: Goldens, case: dict, region: np.ndarray) -> dict[str, np.ndarray]:
    frame, face, box = synthetic_frame(k=case["frame_k"]), synthetic_face(case["frame_k"]), case["face_box"]
    crop, mask = crop_geometry(tuple(box)), mode_mask(goldens, case)
    x1, y1, x2, y2 = region.tolist()
    own, changed = {}, np.zeros(frame.shape[:2], bool)  # all that changes must lie in the region
    for path, blur in (("offline", masks.BLUR_OFFLINE), ("realtime", masks.BLUR_REALTIME)):
        own["mask_realtime"] = masks.blend_mask(mask, crop, blur)  # the later one stays
        out = blended(frame, face, box, own["mask_realtime"])
        own[f"{path}_region"] = out[y1:y2, x1:x2]
        changed |= (out != frame).any(2)
    changed[y1:y2, x1:x2] = False
    own["region_xyxy"] = region if not changed.any() else np.zeros(4, int)
    own["resized_face"] = _resized(face, box)
    own["parser_input_every8"] = masks.parser_input(masks.crop_square(frame[..., ::-1], crop))[:, ::8, ::8]
    return own


def crop_lanczos4(goldens: Goldens) -> Iterator[Result]:
    """Face boxes brought to 256 x 256; the boxes stand among the blend cases."""
    data = goldens.arrays("crop_lanczos4")
    pairs = {}
    for case in goldens.json("blend_cases")["cases"]:
        if "lanczos4" in case:
            crop = face_crop(synthetic_frame(k=case["frame_k"]), tuple(case["box"]), CROP_SIDE)
            name = case["lanczos4"]
            pairs[f"{name} crc32"] = (crc32(crop), case["crc32"])
            pairs[f"{name} sum"] = (int(crop.sum()), case["sum"])
            if name in data:
                pairs[name] = (crop, data[name])
    known = {name.partition(" ")[0] for name in pairs}
    pairs |= {name: ("no box", "a box") for name in data if name not in known}
    yield exact("crop_lanczos4", pairs)


def dwpose_processing(goldens: Goldens) -> Iterator[Result]:
    """What surrounds the landmark network: its input, and points out of its two results."""
    described, data = goldens.json("dwpose_cases"), goldens.tensors("dwpose")
    numbers = {
        "input_size_wh": [dwpose.INPUT_WIDTH, dwpose.INPUT_HEIGHT],
        "simcc_split_ratio": dwpose.BINS_PER_PIXEL,
        "flip_indices": dwpose.MIRROR_PAIRS.tolist(),
        "padding": dwpose.PADDING,
        "flip_test": True,
    }
    fixed = {key: (value, described[key]) for key, value in numbers.items()}
    geometry, warped, points, scores = {}, {}, {}, {}
    for case in described["cases"]:
        name, shape = case["name"], case["frame"]
        center, scale = dwpose.whole_image_box(shape["w"], shape["h"])
        fixed |= {f"{name} center": (center.tolist(), case["center"])}
        fixed |= {f"{name} scale": (scale.tolist(), case["scale"])}
        geometry[f"{name} matrix"] = (dwpose.warp_matrix(center, scale), case["warp_matrix"])
        picture = dwpose.warp(synthetic_frame(shape["h"], shape["w"], shape["k"]))
        key = f"{name}_warped_bgr_every4"
        if key in data:
            warped[key] = (picture[::4, ::4], data[key])
        found, peaks = dwpose.decode_simcc(*_peaks(case))
        found = dwpose.to_image(found, shape["w"], shape["h"])
        points[name] = (found, case["keypoints_image"])
        scores[name] = (peaks, case["scores"])
        fixed |= {f"{name} face68": (dwpose.face_points(found).tolist(), case["face68_int32"])}
    colours = {
        "mean": (dwpose.MEAN_RGB, described["mean_rgb"]),
        "std": (dwpose.STD_RGB, described["std_rgb"]),
    }
    yield exact("dwpose.geometry", fixed)
    yield close("dwpose.colours", colours, Tolerance(1e-5))
    yield close("dwpose.warp_matrix", geometry, Tolerance(1e-6))
    yield close("dwpose.warp", warped, _WARP)
    yield close("dwpose.points", points, _ROUNDED, "stored with 4 decimals")
    yield close("dwpose.scores", scores, _ROUNDED, "stored with 6 digits")
    yield from _simcc(described, {key: value.numpy() for key, value in data.items()})
    yield not_run("dwpose.network", "it runs from the official ONNX file, not from recipe weights")


def _peaks(case: dict) -> tuple[np.ndarray, np.ndarray]:
    """Network results (133, bins) that have the case's arg-max positions and scores."""
    out = []
    for axis, side in (("x", dwpose.INPUT_WIDTH), ("y", dwpose.INPUT_HEIGHT)):
        values = np.full((dwpose.N_POINTS, int(side * dwpose.BINS_PER_PIXEL)), -1e3, np.float32)
        values[np.arange(dwpose.N_POINTS), case[f"simcc_argmax_{axis}"]] = case["scores"]
        out.append(values)
    return out[0], out[1]


def _simcc(described: dict, data: dict[str, np.ndarray]) -> Iterator[Result]:
    """Averaged rows of one case: flip averaging against a mirrored pass solved for, then arg-max and score."""
    stored = [case for case in described["cases"] if f"{case['name']}_simcc_x_flipavg" in data]
    if not stored:
        yield not_run("dwpose.flip_average", "no case has its averaged rows stored")
    for case in stored:
        name = case["name"]
        rows, means, averaged = data["rows"], [], {}
        for axis, reverse in (("x", True), ("y", False)):
            plain, mean = data[f"{name}_simcc_{axis}"], data[f"{name}_simcc_{axis}_flipavg"]
            full = np.zeros((2, dwpose.N_POINTS, plain.shape[1]), np.float32)
            full[0, rows] = plain
            other = 2 * mean - plain
            full[1, dwpose.MIRROR_PAIRS[rows]] = other[:, ::-1] if reverse else other
            means.append(dwpose.flip_average(full[0], full[1], reverse)[rows])
            averaged[axis] = (means[-1], mean)
        yield close(f"dwpose.flip_average.{name}", averaged, _SIMCC)
        points, scores = dwpose.decode_simcc(*means)
        bins = (points * dwpose.BINS_PER_PIXEL).astype(int)
        pairs = {}
        for column, axis in enumerate("xy"):
            expected = [case[f"simcc_argmax_{axis}"][row] for row in rows]
            pairs[axis] = (bins[:, column].tolist(), expected)
        yield exact(f"dwpose.arg_max.{name}", pairs, f"{len(rows)} rows")
        expected = np.array(case["scores"])[rows]
        yield close(f"dwpose.peaks.{name}", {"scores": (scores, expected)}, _SIMCC)
