"""The linter of graphs finds what is broken; the shipped graphs in both formats mean the same and are laid out well."""

from __future__ import annotations

import copy
import json

import pytest
from graph_lint import as_prompt, lint, overlaps, recorded, signatures
from support import ROOT

GRAPHS = sorted((ROOT / "workflows").glob("*.json"))
KNOWN = recorded()
GOOD = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "a.png"}},
    "2": {"class_type": "VAELoader", "inputs": {"vae_name": "v.safetensors"}},
    "3": {"class_type": "CLIPLoader", "inputs": {"clip_name": "c.safetensors", "type": "minimax"}},
    "4": {
        "class_type": "MiniMaxH3ReferenceToVideo",
        "inputs": {
            "clip": ["3", 0], "vae": ["2", 0], "audio_vae": ["2", 0], "prompt": "", "width": 64, "height": 64,
            "length": 22, "ref_image_size": "match", "ref_images.ref_image_0": ["1", 0],
        },
    },
    "5": {
        "class_type": "MVEx_SubjectCrop",
        "inputs": {
            "original_images": ["1", 0], "masks": ["1", 1], "mode": "combined", "mode.crop_scale": 1.5,
            "mode.aspect_ratio": 0.0, "divisible_by": 32, "upscale_megapixels": 0.0,
        },
    },
    "6": {"class_type": "PreviewImage", "inputs": {"images": ["5", 0]}},
}  # fmt: skip


def broken(node: str, **changes) -> dict:
    """Return GOOD with inputs of a node set, or taken away where the value is None."""
    prompt = copy.deepcopy(GOOD)
    prompt[node]["inputs"] |= changes
    prompt[node]["inputs"] = {k: v for k, v in prompt[node]["inputs"].items() if v is not None}
    return prompt


def test_a_good_graph_has_no_fault():
    assert lint(GOOD, KNOWN) == []


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        (broken("4", vae=None), "4 MiniMaxH3ReferenceToVideo.vae: required and not there"),
        (broken("4", vae=["1", 0]), "takes VAE, 1 LoadImage gives IMAGE there"),
        (broken("4", vae=["9", 0]), "which is not in the graph"),
        (broken("4", vae=["2", 1]), "has 1 outputs, not one of number 1"),
        (broken("4", vae="v"), "a VAE comes from another node"),
        (broken("4", width=31), "31 is outside 32..16384"),
        (broken("4", width=64.5), "64.5 is no INT"),
        (broken("4", width=True), "True is no INT"),
        (broken("4", prompt=7), "7 is no STRING"),
        (broken("4", ref_image_size="small"), "'small' is none of match, max"),
        (broken("4", ref_image=["1", 0]), ".ref_image: no such input"),
        (broken("4", **{"ref_images.ref_image_9": ["1", 0]}), ".ref_images.ref_image_9: no such input"),
        (broken("4", **{"ref_images.ref_image_1": ["1", 1]}), "takes IMAGE, 1 LoadImage gives MASK there"),
        (broken("3", type="h3"), "'h3' is none of stable_diffusion"),
        (broken("5", **{"mode.crop_scale": None}), ".mode.crop_scale: required and not there"),
        (broken("5", crop_scale=1.5), ".crop_scale: no such input"),
        (broken("5", mode="static"), "'static' is none of combined, tracked, zoomed"),
        (broken("5", **{"mode.crop_scale": 9.0}), "9.0 is outside 0..4"),
        (broken("5", **{"mode.prefer": "x"}), ".mode.prefer: no such input"),  # of `tracked`, not of `combined`
        (GOOD | {"7": {"class_type": "MaskMorphology", "inputs": {}}}, "7 MaskMorphology: no such node"),
        ({k: v for k, v in GOOD.items() if k != "6"}, "no node of this graph shows or saves anything"),
    ],
)  # fmt: skip
def test_each_fault_is_found(prompt, fault):
    found = lint(prompt, KNOWN)
    assert any(fault in line for line in found), found


def test_a_circle_is_found():
    prompt = {
        "1": {"class_type": "InvertMask", "inputs": {"mask": ["2", 0]}},
        "2": {"class_type": "InvertMask", "inputs": {"mask": ["1", 0]}},
    }
    assert "1 is its own input in the end" in lint(prompt, KNOWN)


def test_signatures_are_read_from_what_a_server_says():
    told = {
        "A": {
            "input": {
                "required": {
                    "seed": ["INT", {"default": 1, "min": 0, "max": 9}],
                    "ckpt_name": [["here.safetensors"]],
                    "mode": ["COMFY_DYNAMICCOMBO_V3", {"options": [
                        {"key": "x", "inputs": {"required": {"y": ["FLOAT", {}]}}}]}],
                },
                "optional": {"more": ["COMFY_AUTOGROW_V3", {"template": {
                    "input": {"required": {"one": ["IMAGE", {}]}}, "prefix": "one_", "min": 1, "max": 2}}]},
            },
            "output": ["IMAGE,X"], "output_name": ["image"], "output_node": True,
        }
    }  # fmt: skip
    known = signatures(told)
    assert known["A"]["outputs"] == [["image", "IMAGE,X"]]
    good = {"seed": 3, "ckpt_name": "there.safetensors", "mode": "x", "mode.y": 2, "more.one_0": ["1", 0]}
    prompt = {"1": {"class_type": "A", "inputs": good}}
    assert lint(prompt, known) == ["1 is its own input in the end"]
    del good["more.one_0"], good["mode.y"]
    assert {line.split(": ")[0] for line in lint(prompt, known)} == {"1 A.more.one_0", "1 A.mode.y"}


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda p: p.stem)
def test_a_graph_and_its_twin_mean_the_same(graph):
    page = as_prompt(json.loads(graph.read_text("utf-8")))
    twin = json.loads((graph.parent / "api" / graph.name).read_text("utf-8"))
    assert page.keys() == twin.keys()
    for node, wanted in twin.items():
        assert page[node]["class_type"] == wanted["class_type"]
        shown = {k: page[node]["inputs"].get(k) for k in wanted["inputs"]}
        assert shown == wanted["inputs"], f"node {node}"


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda p: p.stem)
def test_no_node_of_a_graph_lies_on_another(graph):
    assert overlaps(json.loads(graph.read_text("utf-8"))) == []


def test_overlaps_are_found():
    nodes = [{"id": i, "type": "A", "pos": [0, y], "size": [100, 50]} for i, y in enumerate((0, 79, 200))]
    groups = [{"title": "G", "bounding": [-10, 190, 120, 100]}]
    found = overlaps({"nodes": nodes, "groups": groups})
    assert found == ["0 A / 1 A", "2 A / edge of the group 'G'"]


WARDROBE = [
    *("wardrobe_core_cpu", "dressed_presenter"),
    *("wardrobe_h3_sam3", "hair_swap", "studio_swap", "wardrobe_community_packs"),
]


@pytest.mark.parametrize("name", WARDROBE)
def test_a_wardrobe_graph_is_explained(name):
    page = json.loads((ROOT / "workflows" / f"{name}.json").read_text("utf-8"))
    assert any(n["type"] == "MarkdownNote" and n["widgets_values"][0] for n in page["nodes"])
    assert len(page["groups"]) >= 5
