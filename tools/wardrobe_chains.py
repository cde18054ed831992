"""The chains of nodes that wardrobe_graphs.py writes: with the sample clip, with SAM3 and MiniMax H3, with other packs."""

from __future__ import annotations

from graph_page import BLUE, GRAY, GREEN, RED, YELLOW, Graph, Group

W = "TalkingHeadWardrobe"


def sample() -> dict:
    """The chain round the sample clip; a blend with a colour stands where a sampler goes."""
    return {
        "11": ("TalkingHeadSampleClip", "Sample Clip", {"clip": "presenter"}),
        "162": (W + "SubtractOccluders", "Dress grown by 8 px, hands taken out", {
            "mask": ("11", 2), "occluders": ("11", 3), "grow_px": 8}),
        "19": (W + "SubjectCrop", "One box for the whole clip", {
            "images": ("11", 0), "mask": ("162", 0), "align": 8}),
        "24": (W + "PixelMask", "For the compositor: soft to the inside", {
            "mask": ("19", 1), "feather_px": 4, "stitch": ("19", 2), "occluders": ("162", 1)}),
        "23": (W + "LatentMask", "For a sampler: whole cells", {"mask": ("19", 1), "grid": "sd"}),
        "194": ("PreviewImage", "What a sampler would draw anew", {"images": ("23", 1)}),
        "20": ("EmptyImage", "New colour", {
            "width": ("19", 3), "height": ("19", 4), "batch_size": ("19", 5), "color": 0x1E3C96}),
        "31": ("ImageBlend", "Stand-in: the whole crop repainted", {
            "image1": ("19", 0), "image2": ("20", 0), "blend_factor": 0.8, "blend_mode": "normal"}),
        "35": (W + "Composite", "Only the dress changes", {
            "source": ("11", 0), "generated": ("31", 0), "stitch": ("19", 2), "mask": ("24", 0)}),
        "180": (W + "Repaste", "Real hands on top: 0 px change", {
            "base": ("35", 0), "source": ("11", 0), "occluders": ("162", 1), "matte": "hard"}),
    }  # fmt: skip


def track(node: str, images: tuple, words: tuple, title: str, most: int, interval: int, model: str = "10") -> dict:
    """A SAM3 track `node` and its mask, whose number is one higher."""
    mask = str(int(node) + 1)
    return {
        node: ("SAM3_VideoTrack", title, {
            "images": images, "model": (model, 0), "conditioning": words, "detection_threshold": 0.25,
            "max_objects": most, "detect_interval": interval}),
        mask: ("SAM3_TrackToMask", f"{title}: mask", {"track_data": (node, 0), "object_indices": ""}),
    }  # fmt: skip


def clip_and_tracker(what: str, keep: str) -> dict:
    return {
        "10": ("CheckpointLoaderSimple", "SAM 3.1", {"ckpt_name": "sam3.1_multiplex_fp16.safetensors"}),
        "11": ("LoadVideo", "Your clip", {"file": "presenter.mp4"}),
        "12": ("GetVideoComponents", "Frames and sound", {"video": ("11", 0)}),
        "13": ("CLIPTextEncode", "Words: what is painted", {"clip": ("10", 1), "text": what}),
        "14": ("CLIPTextEncode", "Words: what stays", {"clip": ("10", 1), "text": keep}),
        "21": ("PreviewAny", "Frames a second of the clip", {"source": ("12", 2)}),
        "18": ("TalkingHeadImagesToFrames", "Full frames as a stream", {"image": ("12", 0), "fps": ("21", 0)}),
    }


def models() -> dict:
    return {
        "40": ("VAELoader", "H3 video VAE", {"vae_name": "minimax_h3_video_vae_int8_convrot.safetensors"}),
        "41": ("VAELoader", "H3 audio VAE", {"vae_name": "minimax_h3_audio_vae_fp32.safetensors"}),
        "42": ("UNETLoader", "H3, reference to video", {
            "unet_name": "minimax_h3_ref2va_pruned_int8_convrot.safetensors", "weight_dtype": "default"}),
        "43": ("CLIPLoader", "H3 text encoder", {
            "clip_name": "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors", "type": "minimax", "device": "default"}),
        "44": ("LoraLoaderModelOnly", "Turbo LoRA for 4 steps", {
            "model": ("42", 0), "lora_name": "minimax_h3_ref2v_turbo_4step_v0.1_comfyui_bf16.safetensors",
            "strength_model": 1.0}),
        "45": ("MiniMaxH3SigmaShift", "Shifts of the schedule", {"model": ("44", 0), "shift_video": 12.0, "shift_audio": 3.0}),
    }  # fmt: skip


def sampler(prompt: str, picture: str, size: tuple, latent: tuple) -> dict:
    """Conditioning by a picture, one pass of the sampler over `latent`, the crop decoded; size: links of w, h, frames."""
    width, height, length = size
    return {
        "80": ("LoadImage", "Picture to go by", {"image": picture}),
        "90": ("MiniMaxH3ReferenceToVideo", "What to draw", {
            "clip": ("43", 0), "vae": ("40", 0), "audio_vae": ("41", 0), "prompt": prompt, "width": width,
            "height": height, "length": length, "ref_image_size": "match", "ref_images.ref_image_0": ("80", 0)}),
        "91": ("BasicGuider", "Guider", {"model": ("45", 0), "conditioning": ("90", 0)}),
        "92": ("KSamplerSelect", "Sampler", {"sampler_name": "euler"}),
        "31": ("BasicScheduler", "Steps: 4 with the LoRA, 20 without", {
            "model": ("45", 0), "scheduler": "simple", "steps": 4, "denoise": 1.0}),
        "93": ("RandomNoise", "Seed", {"noise_seed": 1}),
        "100": ("SamplerCustomAdvanced", "All frames in one pass", {
            "noise": ("93", 0), "guider": ("91", 0), "sampler": ("92", 0), "sigmas": ("31", 0), "latent_image": latent}),
        "110": ("VAEDecode", "Crop decoded", {"samples": ("100", 0), "vae": ("40", 0)}),
    }  # fmt: skip


def masked_latent(images: tuple, mask: tuple) -> dict:
    return {
        "23": (W + "LatentMask", "For the sampler: whole tokens", {"mask": mask, "vae": ("40", 0), "grid": "auto"}),
        "60": ("VAEEncode", "Crop as latent", {"pixels": images, "vae": ("40", 0)}),
        "61": ("VAEEncodeAudio", "Sound as latent", {"audio": ("12", 1), "vae": ("41", 0)}),
        "62": (W + "ApplyLatentMask", "Latent with its mask; the sound is kept", {
            "video_latent": ("60", 0), "latent_mask": ("23", 0), "audio_latent": ("61", 0), "audio_mode": "keep",
            "fps": ("12", 2)}),
    }  # fmt: skip


def back(name: str, generated: tuple, band: int = 4) -> dict:
    """From the generated crop to the film; band: at least the feather, or a ring of the old colour is left behind it."""
    full, crop = ("18", 0), ("19", 2)
    return {
        "35": (W + "Composite", "Only the paint mask changes", {
            "source": full, "generated": generated, "stitch": crop, "mask": ("24", 0)}),
        "180": (W + "Repaste", "What stays goes on top, its edge cleaned", {
            "base": ("35", 1), "source": full, "occluders": ("162", 1), "stitch": crop, "generated": generated,
            "matte": "colour_line", "band_px": band}),
        "191": ("TalkingHeadWriteVideo", "Film with the clip's sound", {
            "frames": ("180", 1), "audio": ("12", 1), "filename_prefix": f"talkinghead/{name}"}),
        "200": (W + "Metrics", "Proof: what changed where", {
            "source": full, "result": ("180", 1), "stitch": crop, "mask": ("24", 0), "occluders": ("162", 1),
            "loop": True}),
        "201": ("PreviewAny", "The numbers", {"source": ("200", 0)}),
    }  # fmt: skip


def looks() -> dict:
    """What is worth a look before the sampler runs, and what the nodes have to say."""
    return {
        "220": ("ImageFromBatch", "First frame of the box", {"image": ("19", 0), "batch_index": 0, "length": 1}),
        "221": ("PreviewImage", "The box", {"images": ("220", 0)}),
        "222": ("MaskToImage", "Paint as a picture", {"mask": ("162", 0)}),
        "223": ("ImageFromBatch", "Its first frame", {"image": ("222", 0), "batch_index": 0, "length": 1}),
        "224": ("PreviewImage", "What is painted", {"images": ("223", 0)}),
        "225": ("PreviewImage", "What the sampler draws anew", {"images": ("23", 1)}),
        "226": ("PreviewAny", "Subject Crop says", {"source": ("19", 6)}),
        "227": ("PreviewAny", "Subtract Occluders says", {"source": ("162", 2)}),
        "228": ("PreviewAny", "Seam Blend says", {"source": ("111", 1)}),
    }  # fmt: skip


def cache(node: str, mask: tuple, key: str, title: str, images: tuple = ("19", 0)) -> dict:
    """A Mask Cache `node` and whether it found its mask on disk, whose number is 80 higher."""
    return {
        node: (W + "MaskCache", title, {"images": images, "mask": mask, "key": key}),
        str(int(node) + 80): ("PreviewAny", f"{title}: from disk?", {"source": (node, 2)}),
    }


NEEDS = (
    "**Needs ComfyUI 0.35 or newer** (0.34 renders gray inside the mask) and these files below `ComfyUI/models`:\n\n"
    "- `checkpoints/`: sam3.1_multiplex_fp16\n- `vae/`: the two of H3\n- `diffusion_models/`: H3 ref2va\n"
    "- `text_encoders/`: qwen3vl_32b for H3\n- `loras/`: the 4-step turbo LoRA, or bypass it and take 20 steps\n\n"
    "Names vary: choose yours in the loaders. Clip: `input/presenter.mp4` at 24 fps, 17k+5 frames (124, 141, 158, 175 ...).\n\n"
    "**0.3.75 is older than 0.19**: ComfyUI went from 0.3.x to 0.4, ... "
    "0.35. Where the files come from, and what is not known: "
    "[wardrobe](https://github.com/talkinghead/ComfyUI-TalkingHead/blob/main/web/docs/wardrobe.md#files)."
)
SILENT = "**A clip without sound:** take the link off `audio_latent` of 62 and off `audio` of 191, and delete 61."
LOOK_FIRST = (
    "**Look before you sample.** Select the three previews here and press the play button above them: only what they need runs, "
    "SAM3 and the video VAE, but not the sampler."
)
CACHED = (
    "The caches spare SAM3 the next time. They know the pictures and `key` alone: when you change the words or a tracker's "
    "setting, change `key` too."
)
UNPROVEN = "Checked against ComfyUI 0.33's own node list; never run with weights here."


def crop_and_masks(words: dict, infill: bool) -> dict:
    """Coarse track, one box, both tracks inside it, cached, and the masks that come of them."""
    what, keep, title = words["what"], words["keep"], words["title"]
    nodes = track("15", ("12", 0), ("13", 0), "Coarse track, to place the box", 4, 8)
    nodes["19"] = (W + "SubjectCrop", "One box for the whole clip", {
        "images": ("18", 0), "mask": ("16", 0), "align": 32, "pad_fraction": words["pad"], "frame_rule": "17k+5"})  # fmt: skip
    nodes |= track("115", ("19", 0), ("13", 0), f"{title} inside the box", 4, 4)
    nodes |= track("150", ("19", 0), ("14", 0), "What stays, inside the box", 6, 1)
    mask = ("116", 0)
    if infill:
        nodes["117"] = (W + "MaskInfill", "Frames the tracker lost, repaired", {
            "mask": mask, "images": ("19", 0), "stride": 4, "mode": "stabilise", "max_gap": 4})  # fmt: skip
        nodes["119"] = ("PreviewAny", "Mask Infill says", {"source": ("117", 1)})
        mask = ("117", 0)
    nodes |= cache("118", mask, f"sam3.1 | {what} | 0.25 4 4", f"{title}, kept on disk")
    nodes |= cache("153", ("151", 0), f"sam3.1 | {keep} | 0.25 6 1", "What stays, kept on disk")
    nodes["162"] = (W + "SubtractOccluders", f"Grown by {words['grow']} px, then cut out", {
        "mask": ("118", 0), "occluders": ("153", 0), "grow_px": words["grow"]})  # fmt: skip
    nodes["24"] = (W + "PixelMask", "For the compositor: soft to the inside", {
        "mask": ("162", 0), "feather_px": words["feather"], "stitch": ("19", 2), "occluders": ("162", 1)})  # fmt: skip
    return nodes


def seam(source: tuple = ("19", 0), generated: tuple = ("110", 0), latent: bool = True) -> dict:
    inputs = {"generated": generated, "source": source, "mask": ("24", 0), "mode": "context_gain"}
    inputs |= {"latent_mask": ("23", 0)} if latent else {}
    return {"111": (W + "SeamBlend", "The decoder's colour drift undone", inputs)}


def ghosts() -> dict:
    """The hands of the finished frames, tracked in the same box, against the source's."""
    nodes = {
        "210": (W + "SubjectCrop", "The same box of the result", {
            "images": ("180", 1), "mask": ("16", 0), "stitch": ("19", 2)}),
    }  # fmt: skip
    nodes |= track("211", ("210", 0), ("14", 0), "Hands in the result", 6, 1)
    nodes["213"] = (W + "GhostCheck", "Hands where there were none?", {
        "occluders_source": ("153", 0), "occluders_result": ("212", 0)})  # fmt: skip
    nodes["214"] = ("PreviewAny", "Ghosts, frame by frame", {"source": ("213", 1)})
    return nodes


SIZE = (("19", 3), ("19", 4), ("19", 5))


def layout(nodes: dict, note: str, extra: list[Group]) -> list[list[Group]]:
    """The rows of the H3 graphs; nodes a variant lacks are left out."""
    plan = [
        [
            Group("Clip", [["11", "12", "21", "18"], [note]], GREEN),
            Group("Words", [["10", "13", "14"]]),
            Group("One box", [["15", "16", "17", "118" if "70" in nodes else "-"], ["19", "120"]]),
            Group("Tracked inside the box", [["115", "116", "117"], ["150", "151"], ["118", "153", CACHED], ["198", "233"]]),
            Group("Two masks, two uses", [["162", "24"], ["23", "70", "71"]], YELLOW),
            Group("Look before you sample", [["220", "221"], ["222", "223", "224"], ["225", LOOK_FIRST]], GREEN),
        ],
        [
            Group("MiniMax H3", [["40", "41", "43"], ["42", "44", "45"]], GRAY),
            Group("Source as latent", [["60", "61", "62", SILENT]]),
            Group("What to draw", [["80"], ["90"]], GREEN),
            Group("Sampler", [["91", "92", "31"], ["93", "100", "110"]], GRAY),
            Group("Back into the frames", [["112", "111", "35", "180"]], BLUE),
            Group("Film and proof", [["191"], ["200", "201"]], RED),
            Group("What the nodes say", [["226", "227"], ["228", "119"]], RED),
            *extra,
        ],
    ]
    placed: set[str] = set()
    rows = []
    for row in plan:
        kept = []
        for group in row:
            columns = [[e for e in c if len(e) > 4 or e in nodes and e not in placed] for c in group.columns]
            placed.update(e for c in columns for e in c)
            columns = [c for c in columns if any(e in nodes or e == note for e in c)]
            kept += [Group(group.title, columns, group.color)] if columns else []
        rows.append(kept)
    return rows


def h3() -> Graph:
    words = {
        "what": "burgundy dress:1, shoulder strap:2", "keep": "hand:2, forearm:2", "title": "Garment", "pad": 0.12,
        "grow": 8, "feather": 4,
    }  # fmt: skip
    prompt = (
        "<Picture 1> shows an outfit from three sides: a sapphire blue blazer with satin lapels and gold buttons. The presenter "
        "wears this outfit from the first frame to the last. Pose, light, room and camera stay those of the source. "
        "Two hands, nothing else before the chest."
    )
    nodes = clip_and_tracker(words["what"], words["keep"]) | crop_and_masks(words, infill=False) | models()
    nodes |= masked_latent(("19", 0), ("162", 0)) | sampler(prompt, "outfit.png", SIZE, ("62", 0)) | seam()
    nodes |= back("wardrobe_h3_sam3", ("111", 0)) | ghosts() | looks()
    extra = [Group("No second pair of hands", [["210"], ["211", "212"], ["213", "214"]], RED)]
    return Graph("wardrobe_h3_sam3", nodes, layout(nodes, f"{NEEDS}\n\n{UNPROVEN}", extra))


def hair() -> Graph:
    words = {
        "what": "hair:1", "keep": "face:1, ear:2, hand:2, glasses:1", "title": "Hair", "pad": 0.25, "grow": 12,
        "feather": 6,
    }  # fmt: skip
    prompt = (
        "<Picture 1> shows a haircut: a short silver bob with a straight fringe. The presenter has this hair in every frame. "
        "Face, clothes, light and room stay those of the source."
    )
    note = (
        "**Hair instead of clothes.** What stays is the face, and hands that touch the hair. Hair is soft: it grows by 12 px "
        "and is feathered by 6, and a frame the tracker lost is repaired.\n\nThe new hair can only lie where the old was, "
        "12 px more (64 at most): for longer hair put its place into the words as well (hair, shoulder)."
    )
    nodes = clip_and_tracker(words["what"], words["keep"]) | crop_and_masks(words, infill=True) | models()
    nodes |= masked_latent(("19", 0), ("162", 0)) | sampler(prompt, "haircut.png", SIZE, ("62", 0)) | seam()
    nodes |= back("hair_swap", ("111", 0), words["feather"]) | looks()
    return Graph("hair_swap", nodes, layout(nodes, f"{note}\n\n{NEEDS}\n\n{UNPROVEN}", []))


def studio() -> Graph:
    what = "person:1"
    prompt = (
        "<Picture 1> shows an empty news studio at night: a curved desk light, a city behind glass. The presenter sits in this "
        "studio. The presenter, the camera and the light on the face stay those of the source. Nobody else is in the room."
    )
    note = (
        "**The room instead of the clothes.** The person is tracked and everything else is painted, so the box is all that "
        "the room touches, nearly always the whole picture.\n\nLoop Wrap lets the sampler see over the loop's seam, Loop Close "
        "mixes both drawings of it. **A clip that is no loop:** set `min_overlap` of 70 to 0. Nothing is repeated then, and 70 "
        "checks that the clip has 17k+5 frames. (Bypassed, neither checks it.)\n\n`colour_line` takes the old room out of hair and shoulders' edges."
    )
    nodes = clip_and_tracker(what, what) | track("15", ("12", 0), ("13", 0), "The person", 1, 1) | models()
    del nodes["14"]
    nodes |= cache("118", ("16", 0), f"sam3.1 | {what} | 0.25 1 1", "Person, kept on disk", ("12", 0))
    nodes |= {
        "17": ("InvertMask", "The room: all but the person", {"mask": ("118", 0)}),
        "19": (W + "SubjectCrop", "All that the room touches, at a size H3 takes", {
            "images": ("18", 0), "mask": ("17", 0), "align": 32, "pad_fraction": 0.0, "frame_rule": "none"}),
        "120": ("InvertMask", "The person, in the box", {"mask": ("19", 1)}),
        "162": (W + "SubtractOccluders", "Room without the person", {"mask": ("19", 1), "occluders": ("120", 0)}),
        "24": (W + "PixelMask", "For the compositor: soft to the inside", {
            "mask": ("162", 0), "feather_px": 2, "stitch": ("19", 2), "occluders": ("162", 1)}),
        "70": (W + "LoopWrap", "Beginning repeated at the end", {
            "images": ("19", 0), "mask": ("162", 0), "frame_rule": "17k+5"}),
        "71": ("GetImageSize", "Size and length to draw", {"image": ("70", 0)}),
        "112": (W + "LoopClose", "Both drawings of the seam mixed", {"generated": ("110", 0), "overlap": ("70", 2)}),
    }  # fmt: skip
    nodes |= masked_latent(("70", 0), ("70", 1))
    nodes |= sampler(prompt, "studio.png", (("71", 0), ("71", 1), ("71", 2)), ("62", 0))
    nodes |= seam(generated=("112", 0), latent=False) | back("studio_swap", ("111", 0)) | looks()
    return Graph("studio_swap", nodes, layout(nodes, f"{note}\n\n{NEEDS}\n\n{UNPROVEN}", []))


def community() -> Graph:
    what, keep = "burgundy dress:1, shoulder strap:2", "hand:2, forearm:2"
    nodes = clip_and_tracker(what, keep) | models()
    del nodes["18"], nodes["21"]
    nodes |= track("15", ("12", 0), ("13", 0), "Garment", 4, 4) | track("150", ("12", 0), ("14", 0), "Hands", 6, 1)
    nodes |= {
        "152": ("ThresholdMask", "Hands, 0 or 1", {"mask": ("151", 0), "value": 0.5}),
        "160": ("GrowMask", "Garment grown first", {"mask": ("16", 0), "expand": 8, "tapered_corners": True}),
        "161": ("ThresholdMask", "Garment, 0 or 1", {"mask": ("160", 0), "value": 0.5}),
        "162": ("MaskComposite", "Then the hands taken out", {
            "destination": ("161", 0), "source": ("152", 0), "x": 0, "y": 0, "operation": "subtract"}),
        "17": ("VRAM_Debug", "SAM3 leaves the card", {
            "empty_cache": True, "gc_collect": True, "unload_all_models": True, "any_input": ("162", 0)}),
        "19": ("MVEx_SubjectCrop", "One box for the whole clip", {
            "original_images": ("12", 0), "masks": ("17", 0), "mode": "combined", "mode.crop_scale": 1.25,
            "mode.aspect_ratio": 0.0, "divisible_by": 32, "upscale_megapixels": 0.0}),
        "23": ("MVEx_MaskToLatentSpace", "For the sampler only", {
            "masks": ("19", 1), "vae": ("40", 0), "compression": "auto", "spatial_method": "max",
            "temporal_method": "max", "grow_spatial": 0, "grow_temporal": 0}),
        "24": ("NKDMaskOpsLean", "For the compositor only", {
            "mask": ("19", 1), "fill_holes": False, "expand": 0, "feather": 2}),
        "60": ("NKDAVLatent", "Picture and sound, the sound kept", {
            "images": ("19", 0), "audio": ("12", 1), "video_vae": ("40", 0), "audio_vae": ("41", 0),
            "latent_mask": ("23", 0), "audio_mode": "keep", "fps": ("12", 2), "ramp_ticks": 0, "ramp_out_ticks": 0,
            "ramp_shape": "cosine"}),
        "70": ("GetImageSize", "Size of the crop", {"image": ("19", 0)}),
        "35": ("MVEx_SubjectUncrop", "Back into the frames", {
            "cropped_images": ("110", 0), "original_images": ("12", 0), "bboxes": ("19", 2), "cropped_masks": ("24", 0),
            "feather": 0}),
        "180": ("ImageCompositeMasked", "Real hands on top, over the feather of 24", {
            "destination": ("35", 0), "source": ("12", 0), "x": 0, "y": 0, "resize_source": False, "mask": ("152", 0)}),
        "190": ("CreateVideo", "Frames and sound", {"images": ("180", 0), "fps": ("12", 2), "audio": ("12", 1)}),
        "191": ("SaveVideo", "Film", {
            "video": ("190", 0), "filename_prefix": "video/wardrobe_community", "format": "auto", "format.codec": "auto"}),
    }  # fmt: skip
    prompt = h3().nodes["90"][2]["prompt"]
    nodes |= sampler(prompt, "outfit.png", (("70", 0), ("70", 1), ("70", 2)), ("60", 0))
    note = (
        "**The same with other packs' nodes**, none of ours: MaskVidExperiments 0.2.0 (GPL-3.0), NKD Basic Tools 1.14.1, "
        "KJNodes 1.5.0.\n\nThe crop's mask goes two ways and they never meet: MVEx_MaskToLatentSpace for the sampler, "
        "NKDMaskOpsLean for the compositor. NKD's feather reaches onto the hands, so 180 puts them back.\n\nAll frames and masks "
        "are full size: about 20 GB of host memory for 175 frames of 1080x1920."
    )
    proof = "Checked against signatures read in these packs' source; never run here."
    rows = [
        [
            Group("Clip", [["11", "12"], [f"{note}\n\n{NEEDS}\n\n{proof}"]], GREEN),
            Group("Words", [["10", "13", "14"]]),
            Group("Tracked in the full frames", [["15", "16"], ["150", "151", "152"]]),
            Group("What is painted, in one box", [["160", "161", "162"], ["17", "19", "70"]]),
            Group("Two masks, two uses", [["23", "24"]], YELLOW),
        ],
        [
            Group("MiniMax H3", [["40", "41", "43"], ["42", "44", "45"]], GRAY),
            Group("Source as latent", [["60"]]),
            Group("What to draw", [["80"], ["90"]], GREEN),
            Group("Sampler", [["91", "92", "31"], ["93", "100", "110"]], GRAY),
            Group("Back into the frames", [["35", "180", "190"]], BLUE),
            Group("Film", [["191"]], RED),
        ],
    ]
    return Graph("wardrobe_community_packs", nodes, rows)
