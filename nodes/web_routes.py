"""What the pack's routes share: ComfyUI's server, and who may talk to it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from aiohttp import web


def prompt_server() -> Any:
    """Return ComfyUI's PromptServer, or None outside of one: whoever serves has imported its module."""
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)


def is_served(server: Any, path: str) -> bool:
    """Return whether a route of `path` is there already, by a second copy of the pack: aiohttp refuses two."""
    return path in {route.path for route in server.routes if hasattr(route, "path")}


def is_foreign(request: web.Request) -> bool:
    """Return whether another site's page asks.

    A browser says so in Sec-Fetch-Site or Origin, always for a websocket; what sends neither is no browser. ComfyUI's
    own check is for loopback hosts only and is off with --enable-cors-header; this one is for every host.
    """
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower()
    except ValueError:  # no address, such as "http://["
        return True
