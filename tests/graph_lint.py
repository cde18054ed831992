"""Checks of graphs against signatures of nodes, without a server: what a server would refuse, and what only a user would see.

A signature is {"inputs": {name: input}, "outputs": [[name, type], ...], "output_node": bool}. An input is {"type", "required"}
with `default`, `min`, `max`, `options` (a list) where it has them. Type DYNAMIC: `options` maps each choice to inputs of its
own, which a prompt names "mode.child"; type AUTOGROW: up to `max` sockets of type `of`, named "name.prefixN". Combos of files
have no options: which files there are is a matter of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

RECORDED = Path(__file__).parent / "unit" / "data" / "wardrobe_signatures.json"
FILES = {"ckpt_name", "vae_name", "unet_name", "clip_name", "lora_name", "image", "file"}
NUMBERS = {"INT": int, "FLOAT": (int, float)}
WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "DYNAMIC"}
SEEDS = ("seed", "noise_seed")
"""The page adds a widget behind them that says how they change after a run."""
AFTER_SEED = ("fixed", "randomize", "increment", "decrement")


def recorded() -> dict[str, dict]:
    """Return the signatures of nodes that are not this pack's, as they were read from a server or from source."""
    return json.loads(RECORDED.read_text("utf-8"))["nodes"]


def signatures(object_info: dict) -> dict[str, dict]:
    """Return the signatures in what a server's /object_info says."""
    return {name: _signature(info) for name, info in object_info.items()}


def _signature(info: dict) -> dict:
    outputs = zip(info.get("output_name") or info["output"], info["output"], strict=False)
    return {
        "inputs": _inputs(info["input"]),
        "outputs": [[name, kind if isinstance(kind, str) else "COMBO"] for name, kind in outputs],
        "output_node": bool(info.get("output_node")),
    }


def _inputs(groups: dict) -> dict:
    return {
        name: _input(name, spec, group == "required")
        for group in ("required", "optional")
        for name, spec in (groups.get(group) or {}).items()
    }


def _input(name: str, spec: list, required: bool) -> dict:
    kind, more = spec[0], (spec[1] if len(spec) > 1 else None) or {}
    if kind == "COMFY_DYNAMICCOMBO_V3":
        choices = {o["key"]: _inputs(o["inputs"]) for o in more["options"]}
        return {"type": "DYNAMIC", "required": required, "options": choices}
    if kind == "COMFY_AUTOGROW_V3":
        template = more["template"]
        [[of, *_]] = [*template["input"].get("required", {}).values()] or [["*"]]
        prefix = template.get("prefix", "")
        limits = {k: template.get(k) for k in ("min", "max")}
        return {"type": "AUTOGROW", "required": required, "prefix": prefix, "of": of, **limits}
    made = {"type": "COMBO" if isinstance(kind, list) else kind, "required": required}
    made |= {k: more[k] for k in ("default", "min", "max", "multiline") if k in more}
    made |= {"seed": True} if more.get("control_after_generate") or name in SEEDS else {}
    made |= {"upload": True} if any(k.endswith("_upload") and v for k, v in more.items()) else {}
    options = kind if isinstance(kind, list) else more.get("options")
    if made["type"] == "COMBO" and name not in FILES and options is not None:
        made["options"] = list(options)
    return made


def lint(prompt: dict, known: dict[str, dict]) -> list[str]:
    """Return what is wrong with a prompt in API format, a line for each fault; empty if nothing is."""
    faults = []
    for node, content in prompt.items():
        kind = content["class_type"]
        where = f"{node} {kind}"
        if kind not in known:
            faults.append(f"{where}: no such node")
            continue
        allowed = dict(_expanded(known[kind]["inputs"], content["inputs"]))
        for name, spec in allowed.items():
            if name in content["inputs"]:
                faults += [
                    f"{where}.{name}: {fault}"
                    for fault in _value(content["inputs"][name], spec, prompt, known)
                ]
            elif spec["required"]:
                faults.append(f"{where}.{name}: required and not there")
        faults += [f"{where}.{name}: no such input" for name in content["inputs"] if name not in allowed]
    if not any(known.get(c["class_type"], {}).get("output_node") for c in prompt.values()):
        faults.append("no node of this graph shows or saves anything")
    return faults + [f"{node} is its own input in the end" for node in _circular(prompt)]


def _expanded(inputs: dict, given: dict, prefix: str = "") -> Iterator[tuple[str, dict]]:
    """Yield the inputs a prompt may have: of a DYNAMIC one those of its choice, of an AUTOGROW one its sockets."""
    for name, spec in inputs.items():
        name = prefix + name
        if spec["type"] == "AUTOGROW":
            for i in range(spec["max"]):
                yield f"{name}.{spec['prefix']}{i}", {"type": spec["of"], "required": i < (spec["min"] or 0)}
            continue
        yield name, spec
        if spec["type"] == "DYNAMIC" and isinstance(given.get(name), str):
            yield from _expanded(spec["options"].get(given[name], {}), given, f"{name}.")


def _value(value: object, spec: dict, prompt: dict, known: dict) -> Iterator[str]:
    kind = spec["type"]
    if isinstance(value, list):
        yield from _link(value, kind, prompt, known)
        return
    options = spec.get("options")
    if kind not in WIDGETS:
        yield f"a {kind} comes from another node, here is {value!r}"
    elif kind in ("COMBO", "DYNAMIC"):
        if options is not None and value not in options:
            yield f"{value!r} is none of {', '.join(map(str, options))}"
    elif kind in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, NUMBERS[kind]):
            yield f"{value!r} is no {kind}"
        elif not spec.get("min", value) <= value <= spec.get("max", value):
            yield f"{value} is outside {spec.get('min')}..{spec.get('max')}"
    elif not isinstance(value, {"STRING": str, "BOOLEAN": bool}[kind]):
        yield f"{value!r} is no {kind}"


def _link(value: list, kind: str, prompt: dict, known: dict) -> Iterator[str]:
    source = prompt.get(value[0]) if len(value) == 2 else None
    if source is None:
        yield f"linked to {value!r}, which is not in the graph"
        return
    if source["class_type"] not in known:
        return  # said where it stands
    outputs = known[source["class_type"]]["outputs"]
    if not 0 <= value[1] < len(outputs):
        yield f"{value[0]} {source['class_type']} has {len(outputs)} outputs, not one of number {value[1]}"
    elif not fits(outputs[value[1]][1], kind):
        yield f"takes {kind}, {value[0]} {source['class_type']} gives {outputs[value[1]][1]} there"


def fits(given: str, wanted: str) -> bool:
    """Say whether an output's type may be linked to an input's; both may be lists of types, * is any."""
    have, want = set(given.split(",")), set(wanted.split(","))
    return "*" in have | want or bool(have & want)


def _circular(prompt: dict) -> list[str]:
    """Return the nodes left when all whose inputs are done have been taken away."""
    waits = {
        node: {v[0] for v in content["inputs"].values() if isinstance(v, list) and v and v[0] in prompt}
        for node, content in prompt.items()
    }
    while done := [node for node, on in waits.items() if not on]:
        for node in done:
            del waits[node]
        for on in waits.values():
            on.difference_update(done)
    return sorted(waits)


def as_prompt(page: dict) -> dict:
    """Return the prompt, in API format, that a graph in UI format stands for; notes are left out."""
    sources = {link[0]: [str(link[1]), link[2]] for link in page["links"]}
    prompt = {}
    for node in page["nodes"]:
        if node["type"] in ("Note", "MarkdownNote"):
            continue
        values, inputs = list(node.get("widgets_values") or []), {}
        for item in node.get("inputs") or []:
            if "widget" in item:
                value = values.pop(0)
                if item["name"] in SEEDS and values and values[0] in AFTER_SEED:
                    values.pop(0)
                if item["type"] != "IMAGEUPLOAD":
                    inputs[item["name"]] = value
            if item.get("link") is not None:
                inputs[item["name"]] = sources[item["link"]]
        prompt[str(node["id"])] = {"class_type": node["type"], "inputs": inputs}
    return prompt


def overlaps(page: dict) -> list[str]:
    """Return the pairs of nodes of a graph in UI format that lie on each other, titles included, and nodes in two groups."""
    boxes = [(f"{n['id']} {n['type']}", n["pos"][0], n["pos"][1] - TITLE, *_corner(n)) for n in page["nodes"]]
    found = []
    for i, (name, x1, y1, x2, y2) in enumerate(boxes):
        for other, u1, v1, u2, v2 in boxes[:i]:
            if x1 < u2 and u1 < x2 and y1 < v2 and v1 < y2:
                found.append(f"{other} / {name}")
    for name, x1, y1, x2, y2 in boxes:
        for group in page["groups"]:
            x, y, w, h = group["bounding"]
            inside = x <= x1 and x2 <= x + w and y <= y1 and y2 <= y + h
            if not inside and x1 < x + w and x < x2 and y1 < y + h and y < y2:
                found.append(f"{name} / edge of the group {group['title']!r}")
    return found


TITLE = 30
"""Height of a node's title, which stands above its position."""


def _corner(node: dict) -> tuple[float, float]:
    size = node["size"]
    width, height = (size["0"], size["1"]) if isinstance(size, dict) else size
    return node["pos"][0] + width, node["pos"][1] + height
