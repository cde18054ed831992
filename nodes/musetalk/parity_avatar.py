"""Parity of avatar preparation and of the whole chain: latents, material of the realtime path, crops to blended frames."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..core.blend import crop_geometry, face_crop
from ..core.parity_measure import Result, Tolerance, close, exact, not_run, some
from ..core.timeline import cycle_indices
from . import masks
from .boxes import add_margin, face_box
from .model import to_rgb_uint8
from .parity_audio import encoder_states, window_tokens
from .parity_images import CROP_SIDE, blended, mode_mask
from .parity_networks import with_positions
from .parity_recipe import Goldens, crc32, rgb_batch, synthetic_face, synthetic_frame
from .parity_windows import current_windows

_JAW = {"map": "ellipse", "mode": "jaw", "cheek": [90, 90]}
"""The parser's answer upstream was given for the avatar and for the whole chain."""
_BLURS = {"offline": masks.BLUR_OFFLINE, "realtime": masks.BLUR_REALTIME}


def sampled_latents(goldens: Goldens, rgb: Tensor, noise_masked: Tensor, noise_reference: Tensor) -> Tensor:
    """Return the latents upstream draws, (1, 8, 32, 32): mean and deviation with the stored noise, masked first."""
    nets = goldens.nets
    parts = []
    for picture, noise in zip(nets.network_inputs(rgb), (noise_masked, noise_reference), strict=True):
        mean, logvar = nets.vae.encode(picture)
        parts.append((mean + (logvar / 2).exp() * goldens.cast(noise)) * nets.config.vae.scaling_factor)
    return torch.cat(parts, 1)


def latents(goldens: Goldens) -> Iterator[Result]:
    """One crop into latents: network inputs, the mean the pack uses, the sample upstream draws, and back."""
    name = "latents_for_unet_reduced"
    data, nets, rgb = goldens.tensors(name), goldens.nets, rgb_batch(synthetic_face())
    inputs = {}
    for part, picture in zip(("half", "full"), nets.network_inputs(rgb), strict=True):
        key = f"pre_{part}_rows_120_135"
        inputs[key] = (picture[0, :, 120:136], data[key])
    yield close(f"{name}.input", inputs, Tolerance(1e-6) if goldens.is_fp32 else goldens.network)
    own = {
        "latents_mode": nets.encode_crops(rgb),
        "latents_sampled": sampled_latents(goldens, rgb, data["noise_masked"], data["noise_ref"]),
    }
    yield close(name, {key: (value, data[key]) for key, value in own.items()}, goldens.network)
    reference = goldens.cast(data["latents_mode"])[:, 4:] / nets.config.vae.scaling_factor
    picture = to_rgb_uint8(nets.vae.decode(reference)).flip(-1)[:, ::4, ::4]
    yield close(
        f"{name}.picture", {"decoded": (picture, data["decoded_mode_ref_bgr_u8_every4"])}, goldens.image
    )


def avatar_material(goldens: Goldens) -> Iterator[Result]:
    """The realtime preparation of a few frames: files, order, boxes, masks, and which frame each output shows."""
    described = goldens.json("avatar_material")
    n, boxes = described["n_source_frames"], some(described["coords_pkl"], "coords_pkl")
    order = cycle_indices(0, 2 * n, n, "pingpong").tolist()
    own = _own_boxes(goldens, described) or boxes[:n]
    crops = [crop_geometry(tuple(own[i])) for i in order]
    soft = [masks.blend_mask(mode_mask(goldens, _JAW), crop, masks.BLUR_REALTIME) for crop in crops]
    latent = [1, goldens.reduced_config.unet.in_channels, *[goldens.reduced_config.latent_size] * 2]
    pairs = {
        "frame_source_index": (order, described["frame_source_index"]),
        "frame_crc32": ([crc32(synthetic_frame(k=i)) for i in order], described["frame_crc32"]),
        "coords_pkl": ([list(own[i]) for i in order], boxes),
        "mask_coords_pkl": ([list(crop[:4]) for crop in crops], described["mask_coords_pkl"]),
        "mask_shapes": ([list(mask.shape) for mask in soft], described["mask_shapes"]),
        "mask_crc32": ([crc32(mask) for mask in soft], described["mask_crc32"]),
        "files": (_files(2 * n), described["files"]),
        "directories": (["full_imgs", "mask", "vid_output"], described["directories"]),
        "coords_item_types": (["list"] * 2 * n, described["coords_item_types"]),
        "latents length": (2 * n, described["latents_pt"]["length"]),
        "latents shape": (latent, described["latents_pt"]["item_shape"]),
    }
    for run in described["inference_runs"]:
        pairs |= _written(run, n)
    for index, run in enumerate(described["datagen"]):
        pairs[f"batches {index}"] = (_batches(run), run["batches"])
    yield exact("avatar_material", pairs)
    yield not_run("avatar_material.ffmpeg", "upstream's ffmpeg commands: the pack writes videos itself")


def _own_boxes(goldens: Goldens, described: dict) -> list | None:
    """Boxes of the named bbox cases with the margin, if those cases are in the directory."""
    if not goldens.has("bbox_cases.json"):
        return None
    cases = {case["name"]: case for case in goldens.json("bbox_cases")["cases"]}
    out = []
    for name in described["bbox_sources"]:
        case = cases[name]
        found = face_box(np.array(case["face68"]), case["detector_box"], case["bbox_shift"])
        out.append(add_margin(found.box, case["frame_hw"][0]))
    return out


def _files(n_frames: int) -> list[str]:
    """Return the legacy avatar's file list for `n_frames` (already doubled), in the golden's order."""
    pictures = [f"{folder}/{i:08d}.png" for folder in ("full_imgs", "mask") for i in range(n_frames)]
    return sorted(["avator_info.json", "coords.pkl", "latents.pt", "mask_coords.pkl", *pictures])


def _written(run: dict, n: int) -> dict[str, tuple]:
    """Upstream's consumer stops one frame early; the frames before are those of the pack."""
    written = max(0, run["chunks"] - 1)
    names = [f"{i:08d}.png" for i in range(written)]
    label = f"{run['chunks']} chunks"
    return {
        f"{label}: written": (written, run["png_written"]),
        f"{label}: names": (names[:2] + names[-1:], run["png_names"]),
        f"{label}: order": (
            cycle_indices(0, written, n, "pingpong").tolist(),
            run["source_frame_index_per_output"],
        ),
    }


def _batches(run: dict) -> list[dict]:
    out = []
    for start in range(0, run["n_chunks"], run["batch"]):
        audio = list(range(start, min(start + run["batch"], run["n_chunks"])))
        latent = [(i + run["delay_frame"]) % run["n_latents_cycle"] for i in audio]
        out.append({"audio": audio, "latent": latent})
    return out


def avatar_latents(goldens: Goldens) -> Iterator[Result]:
    """Latents of the avatar's source frames, drawn with the stored noise."""
    data, boxes = goldens.tensors("avatar_latents_reduced"), goldens.json("avatar_material")["coords_pkl"]
    pairs = {}
    for key, expected in data.items():
        if found := re.fullmatch(r"latents_(\d+)", key):
            k = int(found[1])
            crop = face_crop(synthetic_frame(k=k), tuple(boxes[k]), CROP_SIDE)
            noise = data[f"noise_masked_{k}"], data[f"noise_ref_{k}"]
            pairs[key] = (sampled_latents(goldens, rgb_batch(crop), *noise), expected)
    yield close("avatar_latents_reduced", pairs, goldens.network)


def end_to_end(goldens: Goldens) -> Iterator[Result]:
    """A frame and audio to blended frames: crop, latents, windows, UNet, decoder, both blend paths."""
    data, about, nets = goldens.tensors("e2e_reduced"), goldens.metadata("e2e_reduced"), goldens.nets
    box = [int(v) for v in about["bbox"].split(",")]
    frames = [int(v) for v in re.findall(r"\d+", about["audio"].partition("frames")[2])]
    frame, crop = synthetic_frame(), crop_geometry(tuple(box))
    latent = nets.encode_crops(rgb_batch(face_crop(frame, tuple(box), CROP_SIDE)))
    pcm16 = goldens.tensors("audio_whisper")["pcm16"]
    tokens = window_tokens(encoder_states(goldens, pcm16)[1], current_windows(len(pcm16), 25), frames)
    generated = nets.unet(latent.expand(len(frames), -1, -1, -1), with_positions(goldens, tokens))
    pairs = {"latent": (latent, data["latent"]), "pred": (generated, data["pred"])}
    yield close("e2e_reduced", pairs, goldens.network)
    rgb = to_rgb_uint8(nets.vae.decode(generated / nets.config.vae.scaling_factor))
    faces = rgb.flip(-1).cpu().numpy()
    pictures = {"recon": (faces[:, ::2, ::2], data["recon_bgr_u8_every2"])}
    for path, blur in _BLURS.items():
        soft = masks.blend_mask(mode_mask(goldens, _JAW), crop, blur)
        region = blended(frame, faces[0], box, soft)[box[1] + 60 : box[3], box[0] : box[2]]
        pictures[path] = (region, data[f"{path}_bbox_region"])
    yield close("e2e_reduced.pictures", pictures, goldens.image)
    stated = {"crop_box": (",".join(map(str, crop[:4])), about["crop_box"])}
    yield exact("e2e_reduced.crop_box", stated)
