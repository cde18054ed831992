"""The wardrobe's modules and node classes as the loaded pack has them."""

from __future__ import annotations

import importlib


def pack_module(node_classes, name):
    """Import a module of the loaded pack, under the name that ComfyUI gave it."""
    package = node_classes["TalkingHeadSpeak"].__module__.partition(".nodes.")[0]
    return importlib.import_module(f"{package}.nodes.{name}")


def wardrobe_classes(node_classes) -> dict[str, type]:
    """Return the node classes by the last part of their id."""
    made = pack_module(node_classes, "wardrobe.nodes").NODES
    return {cls.GET_SCHEMA().node_id.removeprefix("TalkingHeadWardrobe"): cls for cls in made}
