"""The V3 extension object that ComfyUI asks for the nodes."""

from __future__ import annotations

import logging

from comfy_api.latest import ComfyExtension, io

from . import node_classes


class TalkingHeadExtension(ComfyExtension):
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        try:
            from . import live_routes, preview_routes

            classes = node_classes()
            live_routes.register()
            preview_routes.register()
            return classes
        except Exception:
            # ComfyUI prints the message of an entry point that fails, not where it failed.
            logging.exception("Talking Head: a node module could not be imported")
            raise
