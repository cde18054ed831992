"""Whole prompts through ComfyUI's own validation and executor, in this process: the wall between the masks, the lazy cache."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace

import pytest
import torch
from wardrobe_pack import wardrobe_classes

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def classes(node_classes):
    return wardrobe_classes(node_classes)


@pytest.fixture
def graph(classes, monkeypatch):
    comfy_nodes = importlib.import_module("nodes")
    latest = importlib.import_module("comfy_api.latest")
    calls = {"track": 0, "pictures": torch.rand(3, 64, 96, 3)}

    class Pictures(latest.io.ComfyNode):
        @classmethod
        def define_schema(cls):
            out = [latest.io.Image.Output("IMAGE")]
            return latest.io.Schema(node_id="WardrobeTestPictures", outputs=out, inputs=[])

        @classmethod
        def execute(cls):
            return latest.io.NodeOutput(calls["pictures"])

    class Track(latest.io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return latest.io.Schema(
                node_id="WardrobeTestTrack",
                inputs=[latest.io.Image.Input("images"), latest.io.Float.Input("value", default=0.5)],
                outputs=[latest.io.Mask.Output("MASK")],
            )

        @classmethod
        def execute(cls, images, value):
            calls["track"] += 1
            return latest.io.NodeOutput((images[..., 0] > value).float())

    class Anything(latest.io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return latest.io.Schema(
                node_id="WardrobeTestAnything",
                inputs=[latest.io.AnyType.Input("value")],
                outputs=[latest.io.AnyType.Output("VALUE")],
            )

        @classmethod
        def execute(cls, value):
            return latest.io.NodeOutput(value)

    class End(latest.io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return latest.io.Schema(
                node_id="WardrobeTestEnd",
                inputs=[latest.io.AnyType.Input("value")],
                outputs=[],
                is_output_node=True,
            )

        @classmethod
        def execute(cls, value):
            calls["end"] = value
            return latest.io.NodeOutput()

    ours = {cls.GET_SCHEMA().node_id: cls for cls in classes.values()}
    for cls in (Pictures, Track, Anything, End):
        ours[cls.GET_SCHEMA().node_id] = cls
    for node_id, cls in ours.items():
        monkeypatch.setitem(comfy_nodes.NODE_CLASS_MAPPINGS, node_id, cls)
    inverts = importlib.import_module("comfy_extras.nodes_mask").InvertMask
    monkeypatch.setitem(comfy_nodes.NODE_CLASS_MAPPINGS, "InvertMask", inverts)
    execution = importlib.import_module("execution")
    return SimpleNamespace(calls=calls, execution=execution)


def validate(graph, prompt):
    return asyncio.run(graph.execution.validate_prompt("p", prompt, None))


def execute(graph, prompt):
    good, error, outputs, errors = validate(graph, prompt)
    assert good, (error, errors)
    sent = []
    server = SimpleNamespace(
        client_id=None, last_node_id=None, send_sync=lambda event, data, sid: sent.append((event, data))
    )
    cache_type = getattr(graph.execution.CacheType, "CLASSIC", False)
    executor = graph.execution.PromptExecutor(
        server, cache_type=cache_type, cache_args={"lru": 0, "ram": 0.0, "ram_inactive": 0.0}
    )
    executor.execute(prompt, "p", {"client_id": "test"}, outputs)
    return executor, sent


def node(name, **inputs):
    return {"class_type": name, "inputs": inputs}


def cache_prompt(value=0.5, **inputs):
    given = {"images": ["1", 0], "mask": ["2", 0], "key": "k", "mode": "auto", "subfolder": "masks"}
    return {
        "1": node("WardrobeTestPictures"),
        "2": node("WardrobeTestTrack", images=["1", 0], value=value),
        "3": node("TalkingHeadWardrobeMaskCache", **(given | inputs)),
        "4": node("WardrobeTestEnd", value=["3", 0]),
    }


def test_a_latent_mask_fits_no_mask_input(graph):
    prompt = {
        "1": node("WardrobeTestPictures"),
        "2": node("WardrobeTestTrack", images=["1", 0], value=0.5),
        "3": node("TalkingHeadWardrobeLatentMask", mask=["2", 0], grid="h3", grow_px=0),
        "4": node("InvertMask", mask=["3", 0]),
        "5": node("WardrobeTestEnd", value=["4", 0]),
    }
    good, _, _, errors = validate(graph, prompt)
    assert not good
    assert [e["type"] for e in errors["4"]["errors"]] == ["return_type_mismatch"]
    assert "LATENT_MASK" in errors["4"]["errors"][0]["details"]
    # Laundered through a socket of any type it gets past the check, and fails where it is used.
    prompt["6"] = node("WardrobeTestAnything", value=["3", 0])
    prompt["4"]["inputs"]["mask"] = ["6", 0]
    executor, _ = execute(graph, prompt)
    assert not executor.success
    assert "end" not in graph.calls


def test_a_hit_never_runs_the_tracker(graph):
    calls = graph.calls
    execute(graph, cache_prompt(0.5, key="a|0.5"))
    assert calls["track"] == 1
    first = calls["end"]
    execute(graph, cache_prompt(0.9, key="a|0.5"))
    assert calls["track"] == 1
    assert torch.equal(calls["end"], first)
    execute(graph, cache_prompt(0.9, key="a|0.9"))
    assert calls["track"] == 2
    assert not torch.equal(calls["end"], first)
    execute(graph, cache_prompt(0.9, key="a|0.5", mode="refresh"))
    assert calls["track"] == 3
    execute(graph, cache_prompt(0.5, key="a|0.5", mode="bypass"))
    assert calls["track"] == 4
    calls["pictures"] = calls["pictures"].clone()
    calls["pictures"][2, 63, 95, 2] = 1 - calls["pictures"][2, 63, 95, 2]
    execute(graph, cache_prompt(0.5, key="a|0.5"))
    assert calls["track"] == 5


def test_a_truncated_file_is_tracked_anew(graph, comfy_base):
    prompt = cache_prompt(subfolder="truncated", save_video=True)
    execute(graph, prompt)
    first = graph.calls["end"]
    [path] = (comfy_base / "output" / "truncated").glob("*.wmask")
    assert path.with_suffix(".mkv").is_file()
    path.write_bytes(path.read_bytes()[:-7])
    execute(graph, prompt)
    assert graph.calls["track"] == 2
    assert torch.equal(graph.calls["end"], first)
    execute(graph, prompt)
    assert graph.calls["track"] == 2


def test_a_video_instead_of_the_tracker(graph, comfy_base):
    prompt = cache_prompt(subfolder="video", save_video=True)
    execute(graph, prompt)
    [path] = (comfy_base / "output" / "video").glob("*.mkv")
    (comfy_base / "input" / "mask.mkv").write_bytes(path.read_bytes())
    first = graph.calls["end"]
    prompt["3"]["inputs"] |= {"file": "mask.mkv", "key": "another"}
    execute(graph, prompt)
    assert graph.calls["track"] == 1
    assert torch.equal(graph.calls["end"], first)


def test_a_folder_that_cannot_be_written_says_how_to_go_on(graph, comfy_base):
    (comfy_base / "output").mkdir(exist_ok=True)
    (comfy_base / "output" / "taken").write_text("a file, not a folder")
    executor, sent = execute(graph, cache_prompt(subfolder="taken"))
    said = [d["exception_message"] for event, d in sent if event == "execution_error"]
    assert not executor.success
    assert len(said) == 1
    assert "Mask Cache: subfolder is" in said[0]
    assert "mode bypass goes on without" in said[0]
    execute(graph, cache_prompt(subfolder="taken", mode="bypass"))
    assert graph.calls["end"].shape == (3, 64, 96)


def test_a_video_is_written_for_a_mask_from_disk_too(graph, comfy_base):
    execute(graph, cache_prompt(subfolder="late"))
    execute(graph, cache_prompt(subfolder="late", save_video=True))
    assert graph.calls["track"] == 1
    assert len(list((comfy_base / "output" / "late").glob("*.mkv"))) == 1


def test_nothing_is_kept_for_gradients(graph):
    execute(graph, cache_prompt(subfolder="inference"))
    assert graph.calls["end"].is_inference()


@pytest.mark.parametrize("folder", ["", "../up", "/tmp/masks"])
def test_masks_stay_in_the_output_folder(graph, folder):
    prompt = cache_prompt(subfolder=folder)
    good, _, _, errors = validate(graph, prompt)
    assert not good
    assert "a folder below ComfyUI's output folder" in str(errors["3"])


def test_the_unused_kind_of_full_frames_says_where_the_others_are(graph):
    prompt = {
        "1": node("WardrobeTestPictures"),
        "2": node("WardrobeTestTrack", images=["1", 0], value=0.5),
        "3": node("TalkingHeadWardrobeSubjectCrop", images=["1", 0], mask=["2", 0], mode="static", align=32,
                       pad_fraction=0.0, pad_px=0, overflow="pad", frame_rule="none", on_bad_length="error"),
        "4": node("TalkingHeadWardrobeComposite", source=["1", 0], generated=["3", 0], stitch=["3", 2],
                       mask=["3", 1], on_blocky="ignore"),
        "5": node("WardrobeTestEnd", value=["4", 0]),
    }  # fmt: skip
    execute(graph, prompt)
    assert torch.equal(graph.calls["end"], graph.calls["pictures"])
    prompt["5"]["inputs"]["value"] = ["4", 1]
    _, sent = execute(graph, prompt)
    said = [d["exception_message"] for event, d in sent if event == "execution_error"]
    assert said == ["Execution Blocked: the full frames came as IMAGE, so they leave at the output images"]


@pytest.mark.parametrize("key", ["", "  "])
@pytest.mark.parametrize("mode", ["auto", "refresh"])
def test_an_empty_key_is_refused_before_anything_runs(graph, key, mode):
    """Two caches on the same pictures would give out each other's masks."""
    good, _, _, errors = validate(graph, cache_prompt(key=key, mode=mode))
    assert not good
    assert "Wardrobe Mask Cache: key is empty; expected what is tracked" in str(errors["3"])


def test_an_empty_key_is_known_late_if_it_is_linked_and_not_asked_for_where_it_has_no_say(graph):
    prompt = cache_prompt(key=["5", 0], subfolder="linked") | {"5": node("WardrobeTestAnything", value="")}
    executor, sent = execute(graph, prompt)
    said = [d["exception_message"] for event, d in sent if event == "execution_error"]
    assert not executor.success
    assert "key is empty" in said[0]
    assert graph.calls["track"] == 0
    execute(graph, cache_prompt(key="", mode="bypass"))
    assert graph.calls["track"] == 1


def test_masks_of_two_words_on_the_same_pictures_stay_apart(graph):
    prompt = cache_prompt(0.2, key="dress", subfolder="two")
    prompt |= {
        "12": node("WardrobeTestTrack", images=["1", 0], value=0.8),
        "13": node(
            "TalkingHeadWardrobeMaskCache", **(prompt["3"]["inputs"] | {"mask": ["12", 0], "key": "hands"})
        ),
    }
    for _ in range(2):
        execute(graph, prompt)
        first = graph.calls["end"]
        prompt["4"]["inputs"]["value"] = ["13", 0]
        execute(graph, prompt)
        assert float(first.mean()) > 0.6 > 0.4 > float(graph.calls["end"].mean())
        prompt["4"]["inputs"]["value"] = ["3", 0]


def test_a_mask_video_needs_no_tracker(graph, comfy_base):
    prompt = cache_prompt(subfolder="alone", save_video=True)
    execute(graph, prompt)
    [path] = (comfy_base / "output" / "alone").glob("*.mkv")
    (comfy_base / "input" / "alone.mkv").write_bytes(path.read_bytes())
    first = graph.calls["end"]
    del prompt["2"], prompt["3"]["inputs"]["mask"]
    prompt["3"]["inputs"] |= {"file": "alone.mkv", "key": ""}
    execute(graph, prompt)
    assert torch.equal(graph.calls["end"], first)
    prompt["3"]["inputs"] |= {"file": "", "key": "nothing there"}
    executor, sent = execute(graph, prompt)
    said = [d["exception_message"] for event, d in sent if event == "execution_error"]
    assert not executor.success
    assert "mask is not connected; expected the tracker's mask" in said[0]
