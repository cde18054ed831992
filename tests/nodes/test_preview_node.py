"""The preview beside Write Video in this process: no server no cost, a client gets states, copies of the pack agree."""

import asyncio
import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

NODE = "TalkingHeadWriteVideo"


@pytest.fixture
def routes(node_classes):
    """Return the preview_routes module of the loaded pack."""
    package = node_classes[NODE].__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.preview_routes")


@pytest.fixture
def server(monkeypatch):
    """Put a PromptServer that keeps what is sent in the place of ComfyUI's."""
    from aiohttp import web

    sent = []
    instance = SimpleNamespace(
        client_id="page-1", routes=web.RouteTableDef(), sent=sent, send_sync=lambda *a: sent.append(a)
    )
    monkeypatch.setitem(
        sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance))
    )
    return instance


def write(node_classes, run_node, name):
    image = torch.rand(30, 48, 64, 3, generator=torch.Generator().manual_seed(0))
    frames = run_node("TalkingHeadImagesToFrames", image=image, fps="25").result[0]
    clone = node_classes[NODE].PREPARE_CLASS_CLONE({"UNIQUE_ID": "1:7"})
    with torch.inference_mode():
        return clone.EXECUTE_NORMALIZED(
            frames=frames, filename_prefix=f"w/{name}", codec="libx264", quality="draft"
        )


def test_the_page_that_runs_the_prompt_is_told(node_classes, run_node, server, routes):
    write(node_classes, run_node, "told")
    assert {(event, sid) for event, _, sid in server.sent} == {("talkinghead.preview", "page-1")}
    last = server.sent[-1][1]
    assert (last["node"], last["state"]) == ("1:7", "finished")
    assert last["figures"]["frame"] == 30
    assert routes._runs[last["token"]] is None


def test_no_client_no_preview(node_classes, run_node, server, routes, monkeypatch):
    server.client_id = None
    monkeypatch.setattr(routes, "PreviewRun", None)  # would fail if it were made
    result = write(node_classes, run_node, "alone")
    assert "30 frames" in result.result[1]
    assert server.sent == []


def test_no_server_no_preview(node_classes, run_node, routes, monkeypatch):
    monkeypatch.delitem(sys.modules, "server", raising=False)
    monkeypatch.setattr(routes, "PreviewRun", None)
    assert "30 frames" in write(node_classes, run_node, "no-server").result[1]
    routes.register()


def test_a_failed_run_is_not_served_any_more(routes, server):
    from fractions import Fraction

    package = routes.__package__
    info = importlib.import_module(f"{package}.core.frames").FrameInfo(64, 64, Fraction(25), 5)
    report = importlib.import_module(f"{package}.core.report").Report()
    with pytest.raises(KeyboardInterrupt), routes.live_preview("3", report, info) as run:
        assert routes._runs[run.token] is run
        raise KeyboardInterrupt
    assert routes._runs[run.token] is None
    assert server.sent[-1][1]["state"] == "stopped"


def test_ended_runs_are_forgotten_in_time(routes, server):
    from fractions import Fraction

    package = routes.__package__
    info = importlib.import_module(f"{package}.core.frames").FrameInfo(64, 64, Fraction(25), 5)
    report = importlib.import_module(f"{package}.core.report").Report()
    with routes.live_preview("3", report, info) as first:
        for _ in range(routes.TOKENS_KEPT + 5):
            with routes.live_preview("3", report, info):
                pass
        assert routes._runs[first.token] is first, "a run that goes on is kept"
    assert len(routes._runs) <= routes.TOKENS_KEPT


def test_two_copies_of_the_pack_add_the_routes_once(routes, server, caplog):
    routes.register()
    count = len(server.routes)
    routes.register()
    assert len(server.routes) == count == 3
    assert "another copy" in caplog.text


def ask(server, method, path, **headers):
    """Return the status of one request to the routes."""
    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    async def run():
        app = web.Application()
        app.add_routes(server.routes)
        async with TestClient(TestServer(app)) as client:
            async with client.request(method, f"/talkinghead/preview/{path}", headers=headers) as answer:
                return answer.status

    return asyncio.run(run())


def test_the_head_of_an_endless_answer_is_not_served(routes, server):
    routes.register()
    assert ask(server, "HEAD", "0" * 32 + "/stream") == 405
    assert ask(server, "GET", "0" * 32 + "/stream") == 404
    assert [route.kwargs for route in server.routes] == [{}] * 3, "ComfyUI cannot add a route with options"


def test_an_origin_that_is_no_address_is_foreign(routes, server):
    routes.register()
    assert ask(server, "GET", "0" * 32 + "/init", Origin="http://[") == 403
