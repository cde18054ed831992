"""The shipped wardrobe graphs: run for real where they need no weights, checked against nodes' signatures where they do."""

from __future__ import annotations

import io
import json
import shutil

import av
import cv2
import numpy as np
import pytest
import soundfile
from graph_lint import lint, recorded, signatures
from harness.outcome import decode, files_of, run_well
from support import ROOT

pytestmark = pytest.mark.comfy

SAMPLES = ROOT / "nodes" / "wardrobe" / "samples"
RUN_HERE = ("wardrobe_core_cpu", "dressed_presenter")
NEED_WEIGHTS = ("wardrobe_h3_sam3", "hair_swap", "studio_swap")
OTHER_PACKS = "wardrobe_community_packs"
W = "TalkingHeadWardrobe"
FRAMES = 22
GROWN_PX = 8


def graph(name: str) -> dict:
    return json.loads((ROOT / "workflows" / "api" / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def live(client):
    return signatures(client.get("/object_info"))


def with_saved(prompt: dict, **pictures) -> dict:
    """Return the prompt with a Save Image for each IMAGE link; the frames of `name` are then read by `saved`."""
    for name, link in pictures.items():
        inputs = {"images": list(link), "filename_prefix": f"tests/wardrobe/{name}"}
        prompt[f"save_{name}"] = {"class_type": "SaveImage", "inputs": inputs}
    return prompt


def saved(client, run, name: str) -> np.ndarray:
    """Return uint8 (T,H,W,3) of what was saved."""
    files = [client.view(item) for item in run.files(f"save_{name}")]
    return np.stack([cv2.imdecode(np.frombuffer(f, np.uint8), cv2.IMREAD_COLOR)[..., ::-1] for f in files])


def mask_file(name: str) -> np.ndarray:
    """Return a mask of the sample clip, bool (T,H,W), read with PyAV alone."""
    with av.open(str(SAMPLES / f"presenter_{name}.mkv")) as box:
        return np.stack([f.to_ndarray(format="gray") for f in box.decode(video=0)]) > 127


def inner(masks: np.ndarray, side: int) -> np.ndarray:
    """Return the masks without what is nearer to their outline than half a side, px."""
    return np.stack([cv2.erode(m.astype(np.uint8), np.ones((side, side), np.uint8)) > 0 for m in masks])


def node(kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs}


def core_only() -> dict:
    """The same chain of ComfyUI's own nodes alone: masks as videos of the input folder, the box typed by hand."""
    box = {"x": 0, "y": 160, "width": 216, "height": 224}
    prompt = {
        "11": node("LoadVideo", file="presenter.mp4"),
        "12": node("GetVideoComponents", video=["11", 0]),
        "13": node("LoadVideo", file="presenter_garment.mkv"),
        "14": node("GetVideoComponents", video=["13", 0]),
        "15": node("ImageToMask", image=["14", 0], channel="red"),
        "16": node("ThresholdMask", mask=["15", 0], value=0.5),
        "150": node("LoadVideo", file="presenter_hands.mkv"),
        "151": node("GetVideoComponents", video=["150", 0]),
        "152": node("ImageToMask", image=["151", 0], channel="red"),
        "160": node("ThresholdMask", mask=["152", 0], value=0.5),
        "17": node("GrowMask", mask=["16", 0], expand=4, tapered_corners=True),
        "162": node("MaskComposite", destination=["17", 0], source=["160", 0], x=0, y=0, operation="subtract"),
        "19": node("ImageCrop", image=["12", 0], **box),
        "20": node("CropMask", mask=["162", 0], **box),
        "21": node("EmptyImage", width=216, height=224, batch_size=FRAMES, color=0x1E3C96),
        "31": node("ImageBlend", image1=["19", 0], image2=["21", 0], blend_factor=0.8, blend_mode="normal"),
        "35": node(
            "ImageCompositeMasked", destination=["12", 0], source=["31", 0], x=0, y=160, resize_source=False,
            mask=["20", 0],
        ),
        "180": node(
            "ImageCompositeMasked", destination=["35", 0], source=["12", 0], x=0, y=0, resize_source=False,
            mask=["160", 0],
        ),
        "190": node("CreateVideo", images=["180", 0], fps=["12", 2], audio=["12", 1]),
        # both names of the codec: 0.3 takes `codec`, newer ones nest it
        "191": node(
            "SaveVideo", video=["190", 0], filename_prefix="tests/core_only", format="auto", codec="auto",
            **{"format.codec": "auto"},
        ),
    }  # fmt: skip
    return prompt


@pytest.fixture(scope="module", params=["our nodes", "core alone"])
def dressed(request, client, comfy_server):
    """The run of either chain: frames before and after, the mask that was painted, the film."""
    if request.param == "core alone":
        for path in SAMPLES.iterdir():
            shutil.copy(path, comfy_server.base / "input")
        prompt, source = core_only(), ["12", 0]
    else:
        prompt, source = graph("wardrobe_core_cpu"), ["11", 0]
    prompt["paint"] = node("MaskToImage", mask=["162", 0])
    links = {"source": source, "composite": ["35", 0], "result": ["180", 0], "paint": ["paint", 0]}
    run = run_well(client, with_saved(prompt, **links))
    frames = {name: saved(client, run, name) for name in links}
    frames["paint"] = frames["paint"][..., 0] > 127
    return run, frames, client.view(run.files("191")[0])


def test_only_what_is_painted_changes_and_all_of_it(dressed):
    _, frames, _ = dressed
    changed = (frames["composite"] != frames["source"]).any(-1)
    paint, hands = frames["paint"], mask_file("hands")
    assert changed.shape == (FRAMES, 384, 216)
    assert (changed & ~paint).sum() == 0
    assert (changed & hands).sum() == 0
    assert changed[paint].all()


def test_the_painted_mask_is_the_grown_dress_without_the_hands(dressed):
    """Bounds that hold for any way to grow by so many px."""
    run, frames, _ = dressed
    garment, hands, paint = mask_file("garment"), mask_file("hands"), frames["paint"]
    assert not (paint & hands).any()
    assert not (garment & ~paint).any()
    px = GROWN_PX if "201" in run.outputs else 4
    square = np.ones((2 * px + 1,) * 2, np.uint8)
    reach = np.stack([cv2.dilate(m.astype(np.uint8), square) > 0 for m in garment])
    assert not (paint & ~reach).any()
    assert (paint & ~garment).sum() > FRAMES * 216  # the hem and the neck line


def test_pasting_the_hands_again_changes_nothing(dressed):
    _, frames, _ = dressed
    np.testing.assert_array_equal(frames["result"], frames["composite"])


def test_no_line_of_the_old_dress_is_left_round_the_fingers(dressed):
    """Old: red above blue. With a feather along the hands it is 32 % on such a scene."""
    _, frames, _ = dressed
    hands = mask_file("hands")
    near = (
        np.stack([cv2.dilate(h.astype(np.uint8), np.ones((7, 7), np.uint8)) > 0 for h in hands])
        & frames["paint"]
    )
    red, _, blue = (frames["result"][..., c][near].astype(int) for c in range(3))
    assert (red > blue + 15).mean() < 0.01


def test_the_dress_is_blue(dressed):
    _, frames, _ = dressed
    core = inner(mask_file("garment"), 7)
    red, _, blue = (frames["result"][..., c][core].astype(int) for c in range(3))
    assert (blue > 2 * red).all()
    assert (frames["source"][..., 0][core] > frames["source"][..., 2][core]).mean() > 0.99


def test_the_film_has_every_frame_and_the_sound(dressed):
    run, frames, data = dressed
    with av.open(io.BytesIO(data)) as box:
        [video] = box.streams.video
        assert video.codec_context.name == "h264"
        assert len(box.streams.audio) == 1
    film = decode(data)
    assert film.frames.shape == frames["result"].shape
    assert film.audio_s == pytest.approx(FRAMES / 25, abs=0.15)
    assert np.abs(film.frames.numpy().astype(int) - frames["result"]).mean() < 4  # the codec's own


def test_metrics_say_so_too(client):
    run = run_well(client, graph("wardrobe_core_cpu"))
    found = json.loads(run.outputs["201"]["text"][0])
    assert found["frames"] == FRAMES
    assert (found["outside_changed_px"], found["occluder_changed_px"]) == (0, 0)
    assert found["psnr_outside"] == "inf"
    assert found["psnr_inside"] < 25
    assert found["blocky"] < 0.3
    assert found["old_colour_ring"] < 0.01


MASK_INPUTS = {
    "our compositor": node(
        W + "Composite", source=["11", 0], generated=["19", 0], stitch=["19", 2], on_blocky="ignore"
    ),
    "core's compositor": node(
        "ImageCompositeMasked", destination=["11", 0], source=["11", 0], x=0, y=0, resize_source=False
    ),
    "the alpha": node("MaskToImage"),
    "the hands": node(W + "Repaste", base=["11", 0], source=["11", 0], matte="hard", band_px=4),
}


def wired(consumer: dict, mask: list) -> dict:
    """Return a graph whose consumer takes `mask` where it wants a MASK, with a file at its end."""
    shipped = graph("wardrobe_core_cpu")
    prompt = {key: shipped[key] for key in ("11", "162", "19", "23")}
    name = "occluders" if consumer["class_type"] == W + "Repaste" else "mask"
    prompt["pass"] = node("TestPassAnything", anything=["23", 0])
    prompt["use"] = node(consumer["class_type"], **consumer["inputs"], **{name: mask})
    prompt["save"] = node("SaveImage", images=["use", 0], filename_prefix="tests/leak")
    return prompt


@pytest.mark.parametrize("consumer", MASK_INPUTS.values(), ids=MASK_INPUTS)
def test_a_samplers_mask_fits_no_mask_input(client, comfy_server, consumer):
    before = files_of(comfy_server)
    run = client.run(wired(consumer, ["23", 0]))
    assert run.status == "rejected"
    [fault] = [e for e in run.node_errors["use"]["errors"] if e["type"] == "return_type_mismatch"]
    assert "LATENT_MASK" in fault["details"]
    run = client.run(wired(consumer, ["pass", 0]))
    assert run.status == "error", "the type is lost, so it is found out when it runs"
    assert run.errors[0]["node_id"] == "use"
    assert files_of(comfy_server) == before


@pytest.mark.parametrize("consumer", MASK_INPUTS.values(), ids=MASK_INPUTS)
def test_the_linter_says_what_the_server_refuses(live, consumer):
    [fault] = lint(wired(consumer, ["23", 0]), live)
    assert fault.startswith(f"use {consumer['class_type']}.")
    assert f"23 {W}LatentMask gives LATENT_MASK" in fault


@pytest.fixture(scope="module")
def speech(comfy_server):
    """1.6 s of the sample sentence."""
    samples, rate = soundfile.read(ROOT / "nodes" / "tts" / "samples" / "sample_sentence.flac")
    soundfile.write(comfy_server.base / "input" / "dressed.wav", samples[: 40 * rate // 25], rate)
    return "dressed.wav"


def test_the_dressed_presenter_speaks(client, speech):
    prompt = graph("dressed_presenter")
    prompt["302"] = node("LoadAudio", audio=speech)
    prompt["306"]["inputs"] |= {"quality": "high", "filename_prefix": "tests/dressed"}
    run = run_well(client, with_saved(prompt, plate=["180", 0]))
    film = decode(client.view(run.files("306")[0]))
    shown = film.frames.numpy().astype(int)
    assert shown.shape == (40, 384, 216, 3)
    assert film.audio_s == pytest.approx(1.6, abs=0.15)
    plate = saved(client, run, "plate").astype(int)[np.arange(40) % FRAMES]
    changed = np.abs(shown - plate).max(-1)
    lips = np.zeros((384, 216), bool)
    lips[130:190, 60:150] = True
    assert changed[:, lips].max() > 60, "the mouth is drawn"
    assert changed[:, ~lips].mean() < 4, "and nothing else: dress and hands are the plate's, frame by frame"


@pytest.mark.parametrize("name", [*RUN_HERE, *NEED_WEIGHTS, OTHER_PACKS])
def test_a_graph_fits_the_recorded_signatures(live, name):
    ours = {k: v for k, v in live.items() if k.startswith("TalkingHead")}
    # what is not recorded is asked of the server: core nodes of every version, run elsewhere in this file
    rest = {k: v for k, v in live.items() if k not in recorded()}
    assert lint(graph(name), rest | recorded() | ours) == []


@pytest.mark.parametrize("name", [*RUN_HERE, *NEED_WEIGHTS, OTHER_PACKS])
def test_a_graph_fits_this_server(comfy_server, live, name):
    packs = {k: v for k, v in recorded().items() if not v["from"].startswith("ComfyUI")}
    prompt = graph(name)
    missing = {n["class_type"] for n in prompt.values()} - set(live) - set(packs)
    if missing:
        pytest.skip(f"ComfyUI {comfy_server.version} has no {', '.join(sorted(missing))}")
    assert lint(prompt, packs | live) == []


def test_the_recorded_signatures_are_this_servers(comfy_server, live):
    core = {k: v for k, v in recorded().items() if v["from"].startswith("ComfyUI")}
    [version] = {v["from"].split(",")[0].removeprefix("ComfyUI ") for v in core.values()}
    if comfy_server.version != version:
        pytest.skip(f"they were recorded on ComfyUI {version}, this is {comfy_server.version}")
    for name, wanted in core.items():
        found = json.loads(json.dumps(live[name]))
        if name == "SaveVideo":  # recorded without the encodings, see the file
            found["inputs"]["format"]["options"] = wanted["inputs"]["format"]["options"]
        assert found == {k: v for k, v in wanted.items() if k != "from"}, name


def without_weights(prompt: dict) -> dict:
    """Return a graph for SAM3 and H3 with the sample clip's masks for the tracks and a colour for the sampler.

    Everything of ours stays: the wiring, FRAMES, caches, loops, proofs. The tracked words are those of node 13 (what is
    painted: the dress) or 14 (what stays: all but the dress).
    """
    clip = prompt["12"]
    clip["class_type"], clip["inputs"] = "TalkingHeadSampleClip", {"clip": "presenter"}
    masks = {}
    for key, track in list(prompt.items()):
        if track["class_type"] == "SAM3_TrackToMask":
            asked = prompt[track["inputs"]["track_data"][0]]["inputs"]
            crop = asked["images"][0]
            masks[key] = ["12", 2] if crop == "12" else [crop, 1]
            if asked["conditioning"][0] == "14":
                prompt[f"not_{key}"] = node("InvertMask", mask=masks[key])
                masks[key] = [f"not_{key}", 0]
    size = prompt["90"]["inputs"]
    prompt["colour"] = node(
        "EmptyImage", color=0x1E3C96, batch_size=size["length"], width=size["width"], height=size["height"]
    )
    pixels = prompt["60"]["inputs"]["pixels"]
    prompt["110"] = node(
        "ImageBlend", image1=pixels, image2=["colour", 0], blend_factor=0.8, blend_mode="normal"
    )
    prompt["23"]["inputs"] |= {"grid": "h3"}
    del prompt["23"]["inputs"]["vae"]
    del prompt["21"]  # a rate that only newer ComfyUI gives as text
    for one in prompt.values():
        for name, value in one["inputs"].items():
            if isinstance(value, list) and value[0] in masks:
                one["inputs"][name] = masks[value[0]]
            elif name == "fps":
                one["inputs"][name] = "25" if isinstance(value, list) and value[0] == "21" else 25.0
    kept, waiting = {}, [k for k in prompt if prompt[k]["class_type"] in SHOWN]
    while waiting:
        key = waiting.pop()
        kept[key] = prompt[key]
        waiting += [v[0] for v in prompt[key]["inputs"].values() if isinstance(v, list) and v[0] not in kept]
    return kept


SHOWN = ("TalkingHeadWriteVideo", "PreviewAny", W + "Metrics")


@pytest.mark.parametrize("name", NEED_WEIGHTS)
def test_a_graph_for_h3_runs_with_its_weights_replaced(client, live, name):
    prompt = without_weights(graph(name))
    assert lint(prompt, live) == []
    assert sum(n["class_type"].startswith(W) for n in prompt.values()) >= 9
    prompt["191"]["inputs"]["filename_prefix"] = f"tests/{name}"
    run = run_well(client, prompt)
    film = decode(client.view(run.files("191")[0]))
    assert film.frames.shape == (FRAMES, 384, 216, 3)
    assert film.audio_s == pytest.approx(FRAMES / 25, abs=0.15)
    found = json.loads(run.outputs["201"]["text"][0])
    assert found["frames"] == FRAMES
    dress, hands = inner(mask_file("garment"), 13), inner(mask_file("hands"), 13)
    # The stand-in's mask ends at the picture's border, where a track inside the box would go on into its margin.
    dress[:, :, :8] = dress[:, :, -8:] = False
    red, _, blue = np.moveaxis(film.frames.numpy().astype(int), -1, 0)
    wall = np.s_[:, :100, :24]
    if name == "studio_swap":  # the other way round: all but the dress is painted
        assert (red > 2 * blue)[dress].mean() > 0.99
        assert (blue > red + 25)[hands].mean() > 0.99
        assert (blue > red + 60)[wall].mean() > 0.99
    else:
        assert (blue > red + 25)[dress].mean() > 0.99
        assert (red > blue + 25)[hands].mean() > 0.99
        assert (abs(blue - red) < 60)[wall].mean() > 0.99
    if name == "wardrobe_h3_sam3":
        assert run.outputs["214"]["text"] == [f"no second hands in {FRAMES} frames"]
