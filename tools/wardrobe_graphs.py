"""Write the wardrobe graphs of workflows/ and workflows/api/ from the chains below.

    python tools/wardrobe_graphs.py --info object_info.json [name ...]

object_info.json is what /object_info of a ComfyUI 0.33 or newer with this pack says; nodes of packs that are not installed
there are taken from tests/unit/data/wardrobe_signatures.json. The numbers of nodes mean the same in every graph: 15, 16 track,
19 crop, 162 paint mask, 23 sampler's mask, 24 compositor's, 31 steps, 35 composite, 180 re-paste, 200 metrics.
"""

from __future__ import annotations

import argparse
import json
import uuid
from pathlib import Path

from graph_page import GRAY, GREEN, RED, YELLOW, Graph, Group, api, page
from wardrobe_chains import community, h3, hair, sample, studio

ROOT = Path(__file__).resolve().parents[1]

W = "TalkingHeadWardrobe"


def core_cpu() -> Graph:
    nodes = sample() | {
        "200": (W + "Metrics", "Proof: what changed where", {
            "source": ("11", 0), "result": ("180", 0), "stitch": ("19", 2), "mask": ("24", 0), "occluders": ("162", 1),
            "loop": True}),
        "201": ("PreviewAny", "The numbers", {"source": ("200", 0)}),
        "192": ("PreviewImage", "Frames of the result", {"images": ("180", 0)}),
        "193": ("PreviewImage", "Where anything changed", {"images": ("200", 1)}),
        "190": ("TalkingHeadImagesToFrames", "Result as a stream", {"image": ("180", 0), "fps": "25"}),
        "191": ("TalkingHeadWriteVideo", "Film with the clip's sound", {
            "frames": ("190", 0), "audio": ("11", 1), "filename_prefix": "talkinghead/wardrobe_core_cpu"}),
    }  # fmt: skip
    rows = [
        [
            Group("Clip and masks", [["11", NOTES["start"]]], GREEN),
            Group("What is painted, in one box", [["162", NOTES["order"]], ["19"]]),
            Group("Two masks, two uses", [["24", "23"], ["194"]], YELLOW),
        ],
        [
            Group("In place of the sampler", [["20", "31", NOTES["stand_in"]]], GRAY),
            Group("Back into the frames", [["35", "180", "190"]]),
            Group("Film and proof", [["191"], ["192", "193"], ["200", "201", NOTES["proof"]]], RED),
        ],
    ]
    return Graph("wardrobe_core_cpu", nodes, rows, {"191": (340, 790), "194": (310, 310)})


def dressed_presenter() -> Graph:
    sentence = "Good evening. This presenter was made on your own computer, and every word you hear moves these lips."
    nodes = sample() | {
        "300": ("TalkingHeadMuseTalkLoader", "MuseTalk Loader", {"checkpoint": "embedded", "precision": "fp32"}),
        "301": ("TalkingHeadBuildAvatar", "Avatar of the dressed frames", {
            "model": ("300", 0), "image": ("180", 0), "name": "dressed", "fps": "25", "cycle": "loop", "box": "",
            "face": "largest", "detector": "light"}),
        "302": ("TalkingHeadSpeak", "Speak", {"text": sentence, "voice": "sample sentence", "speed": 1.0, "seed": 0}),
        "303": ("TalkingHeadSpeechFeatures", "Speech Features", {"model": ("300", 0), "audio": ("302", 0), "fps": "25"}),
        "304": ("TalkingHeadMuseTalkRender", "MuseTalk Render", {
            "model": ("300", 0), "avatar": ("301", 0), "speech": ("303", 0), "batch": 8}),
        "305": ("TalkingHeadComposite", "Lips into the dressed frames", {
            "crops": ("304", 0), "avatar": ("301", 0), "mask_mode": "mouth", "seam_mode": "feather"}),
        "306": ("TalkingHeadWriteVideo", "Write Video", {
            "frames": ("305", 0), "audio": ("302", 0), "filename_prefix": "talkinghead/dressed"}),
        "192": ("PreviewImage", "Dressed frames", {"images": ("180", 0)}),
    }  # fmt: skip
    del nodes["194"], nodes["23"]
    rows = [
        [
            Group("Clip and masks", [["11", NOTES["dressed"]]], GREEN),
            Group("What is painted, in one box", [["162", "24"], ["19"]]),
            Group("In place of the sampler", [["20", "31"]], GRAY),
            Group("Back into the frames", [["35", "180"]]),
            Group("The dressed presenter", [["192"]], GREEN),
        ],
        [
            Group("Who speaks, and what", [["302", "300"], ["301"]]),
            Group("Speech to lips", [["303", "304", "305"]], YELLOW),
            Group("The film", [["306"]], RED),
        ],
    ]
    return Graph("dressed_presenter", nodes, rows, {"306": (340, 790)})


NOTES = {
    "start": (
        "**Runs as it is**, on any CPU, without weights: press *Run*.\n\nSample Clip brings a drawn presenter and the masks a "
        "tracker would make. For your own clip put *Load Video* and SAM3 in its place, as *wardrobe_h3_sam3* does. "
        "[More](https://github.com/talkinghead/ComfyUI-TalkingHead/blob/main/web/docs/wardrobe.md)"
    ),
    "order": (
        "Grow first, then take the hands out. The other order paints over the fingers' edges.\n\nClearance stays 0: a ring "
        "kept free round the hands shows the old garment."
    ),
    "proof": (
        "No pixel outside the dress changes, and none of the hands: `outside_changed_px` and `occluder_changed_px` are 0. On "
        "camera a finger's edge mixes skin and old dress; the matte `colour_line` of Repaste (stitch and generated linked) "
        "takes that out, and changes that edge."
    ),
    "stand_in": (
        "The whole crop turns blue, hands too, as a model repaints whole tokens. Replace both nodes by VAE Encode, "
        "*Apply Latent Mask*, your sampler and VAE Decode."
    ),
    "dressed": (
        "**Runs as it is.** The dressed frames go straight into Build Avatar, so the lips are drawn on the new clothes' "
        "frames and no video file lies between.\n\nBuild Avatar looks for the face: it needs the small face models "
        "(README, *Real faces*)."
    ),
}

MAKERS = (core_cpu, dressed_presenter, h3, hair, studio, community)


def write(graph: Graph, known: dict) -> None:
    prompt = api(graph, known)
    lines = ",\n".join(f"  {json.dumps(node)}: {json.dumps(content, ensure_ascii=False)}" for node, content in prompt.items())
    (ROOT / "workflows" / "api" / f"{graph.name}.json").write_text("{\n" + lines + "\n}\n", "utf-8")
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"talkinghead/{graph.name}")
    shown = {"id": str(name), "revision": 0, **page(graph, known)}
    parts = []
    for key, value in shown.items():
        if key in ("nodes", "links", "groups"):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in value)
            parts.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    (ROOT / "workflows" / f"{graph.name}.json").write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def main(argv: list[str] | None = None) -> None:
    from graph_lint import lint, overlaps, recorded, signatures

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--info", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args(argv)
    known = recorded() | {
        k: v for k, v in signatures(json.loads(args.info.read_text("utf-8"))).items() if k not in recorded()
    }
    for graph in (make() for make in MAKERS):
        if args.names and graph.name not in args.names:
            continue
        write(graph, known)
        faults = lint(api(graph, known), known) + overlaps(page(graph, known))
        print(graph.name, len(graph.nodes), "nodes", *faults, sep="\n  " if faults else " ")


if __name__ == "__main__":
    main()
