"""From a prompt in API format and a plan of columns to a graph that ComfyUI's page opens. Used by wardrobe_graphs.py."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from graph_lint import WIDGETS

GAP, EDGE, HEAD, TITLE = 40, 20, 50, 30
SLOT, ROW, TEXT = 22, 26, 130
WIDE = {"CLIPTextEncode": 380, "MiniMaxH3ReferenceToVideo": 440, "TalkingHeadWriteVideo": 420}
SHOWN = {
    "LoadImage": 300, "LoadVideo": 590, "PreviewImage": 300, "SaveVideo": 300, "TalkingHeadWriteVideo": 420,
    "PreviewAny": 330,
}  # fmt: skip
"""Room for the picture, film or text a node shows once it ran, px."""
BLUE, GREEN, YELLOW, RED, GRAY = "#3f789e", "#8A8", "#b58b2a", "#A88", "#888"


@dataclass
class Group:
    """A titled frame round columns of nodes; an entry of a column is a node's id, or a note's text."""

    title: str
    columns: list[list[str]]
    color: str = BLUE


@dataclass
class Graph:
    """name: of the file; nodes: id -> (class, title, inputs), a link being (id, slot); rows: groups, left to right."""

    name: str
    nodes: dict[str, tuple[str, str, dict]]
    rows: list[list[Group]]
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)


def inputs_of(spec: dict, given: dict, prefix: str = "") -> list[tuple[str, dict]]:
    """Return the inputs a node has in the page: those of a DYNAMIC choice follow it, of an AUTOGROW one the linked sockets."""
    out = []
    for name, one in spec.items():
        name = prefix + name
        if one["type"] == "AUTOGROW":
            linked = [k for k in given if k.startswith(name + ".")]
            spare = f"{name}.{one['prefix']}{len(linked)}"
            out += [(k, {"type": one["of"], "required": False}) for k in [*sorted(linked), spare]]
            continue
        out.append((name, one))
        if one["type"] == "DYNAMIC":
            out += inputs_of(one["options"].get(given.get(name), {}), given, f"{name}.")
    return out


def default(spec: dict) -> object:
    if "default" in spec:
        return spec["default"]
    if spec["type"] in ("COMBO", "DYNAMIC"):
        return next(iter(spec["options"]))
    return {"INT": spec.get("min", 0), "FLOAT": spec.get("min", 0.0), "STRING": "", "BOOLEAN": False}[spec["type"]]


def api(graph: Graph, known: dict) -> dict:
    """Return the prompt: every widget with its value, defaults written out but for other packs' optional ones: versions
    differ in those."""
    prompt = {}
    for node, (kind, title, given) in graph.nodes.items():
        inputs = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
        for name, spec in inputs_of(known[kind]["inputs"], inputs):
            told = spec["required"] or kind.startswith("TalkingHead")
            if spec["type"] in WIDGETS and name not in inputs and told:
                inputs[name] = default(spec)
        prompt[node] = {"class_type": kind, "inputs": inputs, "_meta": {"title": title}}
    return prompt


def page(graph: Graph, known: dict) -> dict:
    """Return the graph in UI format, nodes in the plan's columns."""
    prompt, places, groups, notes = api(graph, known), {}, [], []
    y = 0
    for row in graph.rows:
        x, deepest = 0, 0
        for group in row:
            width, depth = EDGE, 0
            for column in group.columns:
                sizes = [_size(graph, prompt, known, entry) for entry in column]
                top = y + HEAD + TITLE
                for entry, (_, h) in zip(column, sizes, strict=True):
                    wide = max(w for w, _ in sizes)
                    if entry in prompt:
                        places[entry] = (x + width, top, wide, h)
                    else:
                        notes.append((entry, (x + width, top, wide, h)))
                    top += h + GAP + TITLE
                depth = max(depth, top - GAP - TITLE - y)
                width += max(w for w, _ in sizes) + GAP
            width += EDGE - GAP
            groups.append((group, [x, y, width, depth + EDGE]))
            x, deepest = x + width + GAP, max(deepest, depth + EDGE)
        y += deepest + GAP
    return _document(graph, prompt, known, places, groups, notes)


def _size(graph: Graph, prompt: dict, known: dict, entry: str) -> tuple[int, int]:
    if entry in graph.sizes:
        return graph.sizes[entry]
    if entry not in prompt:
        lines = sum(1 + len(line) // 40 for line in entry.splitlines())
        return 320, 50 + 21 * lines
    kind, given = prompt[entry]["class_type"], prompt[entry]["inputs"]
    specs = inputs_of(known[kind]["inputs"], given)
    widgets = [s for _, s in specs if s["type"] in WIDGETS]
    sockets = max(len(specs) - len(widgets), len(known[kind]["outputs"]))
    seeds = sum(1 for s in widgets if s.get("seed"))
    texts = sum(1 for s in widgets if s.get("multiline"))
    uploads = sum(1 for s in widgets if s.get("upload"))
    height = 20 + SLOT * sockets + ROW * (len(widgets) - texts + seeds + uploads) + TEXT * texts + SHOWN.get(kind, 0)
    return WIDE.get(kind, 310), height


def _document(graph: Graph, prompt: dict, known: dict, places: dict, groups: list, notes: list) -> dict:
    links, nodes = [], []
    for order, (node, content) in enumerate(prompt.items()):
        kind, given = content["class_type"], content["inputs"]
        sockets, values, named = [], [], {}
        for name, spec in sorted(inputs_of(known[kind]["inputs"], given), key=lambda i: i[1]["type"] in WIDGETS):
            item = {"name": name, "type": "COMBO" if spec["type"] == "DYNAMIC" else spec["type"], "link": None}
            if spec["type"] in WIDGETS:
                item["widget"] = {"name": name}
                value = default(spec) if isinstance(given.get(name, []), list) else given[name]
                values.append(value)
                named[name] = value
            if isinstance(given.get(name), list):
                item["link"] = len(links) + 1
                source, slot = given[name]
                links.append([item["link"], int(source), slot, int(node), len(sockets), item["type"]])
            sockets.append(item)
            if spec.get("seed"):
                values.append("fixed")
                named["control_after_generate"] = "fixed"
            if spec.get("upload"):
                values.append("image")
                named["upload"] = "image"
                sockets.append({"name": "upload", "type": "IMAGEUPLOAD", "widget": {"name": "upload"}, "link": None})
        nodes.append(_node(int(node), kind, content["_meta"]["title"], places[node], order, sockets, values, named))
    for node in nodes:
        outputs = known[node["type"]]["outputs"]
        node["outputs"] = [
            {"name": name, "type": typ, "links": [k[0] for k in links if k[1] == node["id"] and k[2] == i] or None}
            for i, (name, typ) in enumerate(outputs)
        ]
    for i, (text, place) in enumerate(notes):
        note = _node(1000 + i, "MarkdownNote", "Note", place, len(nodes), [], [text], {})
        nodes.append(note | {"outputs": [], "color": "#432", "bgcolor": "#653"})
    return {
        "last_node_id": max(n["id"] for n in nodes),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": [
            {"id": i + 1, "title": g.title, "bounding": box, "color": g.color, "font_size": 24, "flags": {}}
            for i, (g, box) in enumerate(groups)
        ],
        "config": {},
        "extra": {"ds": {"scale": 0.5, "offset": [80, 80]}},
        "version": 0.4,
    }


def _node(number, kind, title, place, order, inputs, values, named) -> dict:
    x, y, width, height = place
    node = {"id": number, "type": kind, "title": title, "pos": [x, y], "size": [width, height], "flags": {}}
    node |= {"order": order, "mode": 0, "inputs": inputs, "outputs": []}
    node |= {"properties": {"Node name for S&R": kind}, "widgets_values": values}
    return node | ({"widgets_values_named": named} if named else {})
