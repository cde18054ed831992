"""The live preview over ComfyUI's server: segments by HTTP, states as events to the page that runs the prompt.

A client names a run by a token of 128 random bits it was sent; no path and no file name comes from it. Requests of other
origins are refused, answers are not cached.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import folder_paths
from aiohttp import web

from .core.frames import FrameInfo
from .core.preview import PreviewRun
from .core.report import Report
from .web_routes import is_foreign, is_served, prompt_server

EVENT = "talkinghead.preview"
ROUTE = "/talkinghead/preview/{token:[0-9a-f]{32}}"
TOKENS_KEPT = 64
_POLL_S = 0.05

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}

# Runs that ended stay as None: a page that asks for what has just gone is not in error.
_runs: OrderedDict[str, PreviewRun | None] = OrderedDict()
_lock = threading.Lock()


def register() -> None:
    """Add the routes to ComfyUI's server, if there is one. Called when the extension is loaded."""
    server = prompt_server()
    if server is None:
        return
    if is_served(server, f"{ROUTE}/init"):
        logging.warning("Talking Head: another copy of this pack serves the live preview; remove one")
        return
    server.routes.get(f"{ROUTE}/init")(_init)
    server.routes.get(f"{ROUTE}/segments")(_segments)
    server.routes.get(f"{ROUTE}/stream")(_stream)


@contextmanager
def live_preview(node_id: str | None, report: Report, info: FrameInfo) -> Iterator[PreviewRun | None]:
    """Give the tap of a render whose page may watch, or None if no client runs the prompt.

    The page gets events EVENT with node and the state of `PreviewRun`, until the block ends.
    """
    server = prompt_server()
    client = getattr(server, "client_id", None)
    if client is None or node_id is None:
        yield None
        return

    def notify(state: dict) -> None:
        server.send_sync(EVENT, {"node": node_id, **state}, client)

    run = PreviewRun(Path(folder_paths.get_temp_directory()), report, info, notify)
    with _lock:
        _runs[run.token] = run
        while len(_runs) > TOKENS_KEPT:
            old = next((token for token, kept in _runs.items() if kept is None), None)
            if old is None:
                break
            del _runs[old]
    try:
        yield run
    finally:
        run.end(complete=False)
        with _lock:
            _runs[run.token] = None


def _find(request: web.Request) -> PreviewRun | web.Response:
    if is_foreign(request):
        return web.Response(status=403, headers=_HEADERS)
    token = request.match_info["token"]
    with _lock:
        run = _runs.get(token)
        known = token in _runs
    return run or web.Response(status=204 if known else 404, headers=_HEADERS)


async def _init(request: web.Request) -> web.Response:
    """The init segment; 204 while there is none."""
    run = _find(request)
    if isinstance(run, web.Response):
        return run
    if not run.init:
        return web.Response(status=204, headers=_HEADERS)
    return web.Response(body=run.init, content_type="video/mp4", headers=_HEADERS)


async def _segments(request: web.Request) -> web.Response:
    """Whole segments from number `from` on, joined, 4 MB at most; X-First and X-Next say which. 204 if there are none."""
    run = _find(request)
    if isinstance(run, web.Response):
        return run
    asked = request.query.get("from", "0")
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        return web.Response(status=400, text="from is the number of a segment, 0 or more", headers=_HEADERS)
    first, following, body = await asyncio.to_thread(run.read, int(asked))
    if not body:
        return web.Response(status=204, headers=_HEADERS)
    headers = {**_HEADERS, "X-First": str(first), "X-Next": str(following)}
    return web.Response(body=body, content_type="video/mp4", headers=headers)


async def _stream(request: web.Request) -> web.StreamResponse:
    """The whole preview as one answer that goes on until the run ends, for pages that may not use MediaSource."""
    # aiohttp would send the body too. Not `allow_head`: ComfyUI adds each route again and fails on any option.
    if request.method == "HEAD":
        return web.Response(status=405, headers={**_HEADERS, "Allow": "GET"})
    run = _find(request)
    if isinstance(run, web.Response):
        return run
    answer = web.StreamResponse(headers=_HEADERS)
    answer.content_type = "video/mp4"
    await answer.prepare(request)
    sent_init, following = False, 0
    while run.running:
        _, after, body = await asyncio.to_thread(run.read, following)
        if not body:
            await asyncio.sleep(_POLL_S)
            continue
        if not await _sent(answer, body if sent_init else run.init + body, run):
            break
        sent_init, following = True, after
    return answer


async def _sent(answer: web.StreamResponse, data: bytes, run: PreviewRun) -> bool:
    """Send when the client takes it; False if the run ends before. A player that is paused takes nothing."""
    sending = asyncio.ensure_future(answer.write(data))
    try:
        while not sending.done():
            if not run.running:
                return False
            await asyncio.wait({sending}, timeout=_POLL_S)
        sending.result()
    except ConnectionError:  # the page is gone
        return False
    finally:
        sending.cancel()
    return True
