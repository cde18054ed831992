"""The V3 extension object: which nodes the pack has."""

from __future__ import annotations

import logging

from comfy_api.latest import ComfyExtension, io


class TalkingHeadExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        try:
            return node_classes()
        except Exception:
            # ComfyUI prints the message of an entry point that fails, not where it failed.
            logging.exception("Talking Head: a node module could not be imported")
            raise


def node_classes() -> list[type[io.ComfyNode]]:
    """Return every node class, in the order of the menu."""
    from . import shared_nodes, video_nodes
    from .musetalk import nodes as musetalk_nodes
    from .tts import nodes as tts_nodes

    return [*tts_nodes.NODES, *shared_nodes.NODES, *musetalk_nodes.NODES, *video_nodes.NODES]
