"""The route of live sessions, /talkinghead/live; what serves it is imported with the first client."""

from __future__ import annotations

import logging
import os

from aiohttp import web

from .web_routes import is_foreign, is_served, prompt_server

ROUTE = "/talkinghead/live"
SESSIONS = "TALKINGHEAD_LIVE_SESSIONS"
_DEFAULT, _MOST = 2, 64


def register() -> None:
    """Add the route to ComfyUI's server, if there is one. Called when the extension is loaded."""
    server = prompt_server()
    if server is None or not max_sessions():
        return
    if is_served(server, ROUTE):
        logging.warning("Talking Head: another copy of this pack serves %s; remove one", ROUTE)
        return
    server.routes.get(ROUTE)(live)


def max_sessions() -> int:
    """Return how many sessions may run at a time, as the environment says; 0 for no route."""
    text = os.environ.get(SESSIONS, str(_DEFAULT))
    if text.isascii() and text.isdigit() and int(text) <= _MOST:
        return int(text)
    logging.warning(
        "Talking Head: %s=%r is not a number in 0..%d; %d live sessions are allowed",
        SESSIONS,
        text,
        _MOST,
        _DEFAULT,
    )
    return _DEFAULT


async def live(request: web.Request) -> web.StreamResponse:
    """Refuse pages of other origins, serve one session to all others."""
    if is_foreign(request):
        return web.Response(status=403, text="live sessions are for pages of this server")
    from .live_socket_routes import serve

    return await serve(request)
