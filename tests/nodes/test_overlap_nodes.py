"""ComfyUI's interrupt and model management under stages in threads of their own."""

from __future__ import annotations

import threading
import time

import pytest
import torch

pytestmark = pytest.mark.comfy


@pytest.fixture
def frames(run_node):
    """A film of 40 frames that nobody has pulled yet."""
    t = torch.arange(round(1.6 * 16000)) / 16000
    audio = {"waveform": (0.3 * torch.sin(1400 * t))[None, None], "sample_rate": 16000}
    model = run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32").result[0]
    image = torch.tensor((0.8, 0.4, 0.3)).expand(1, 96, 96, 3).clone()
    box = {"fps": "25", "cycle": "still", "box": "20,10,76,80"}
    avatar = run_node("TalkingHeadBuildAvatar", model=model, name="overlap", image=image, **box).result[0]
    speech = run_node("TalkingHeadSpeechFeatures", model=model, audio=audio, fps="25").result[0]
    crops = run_node("TalkingHeadMuseTalkRender", model=model, avatar=avatar, speech=speech).result[0]
    return run_node("TalkingHeadComposite", crops=crops, avatar=avatar).result[0]


def test_an_interrupt_reaches_the_node_and_only_its_thread_asks(run_node, frames, monkeypatch):
    """The flag is cleared by whoever asks: asked by a stage, the node would never hear of it."""
    import comfy.model_management as mm

    asked, ask = set(), mm.throw_exception_if_processing_interrupted

    def noted():
        asked.add(threading.current_thread())
        ask()

    def pressed(done, total):
        mm.interrupt_current_processing(done == 16)

    monkeypatch.setattr(mm, "throw_exception_if_processing_interrupted", noted)
    context = type(frames).generate.__globals__["RunContext"]
    monkeypatch.setattr(context, "tick", lambda self, done, total: pressed(done, total))
    before = set(threading.enumerate())
    with pytest.raises(mm.InterruptProcessingException):
        run_node("TalkingHeadWriteVideo", frames=frames, filename_prefix="overlap/stopped")
    assert not mm.processing_interrupted()
    assert asked == {threading.current_thread()}
    assert {t for t in threading.enumerate() if t.name.startswith("talkinghead")} <= before
    monkeypatch.undo()
    video, report = run_node("TalkingHeadWriteVideo", frames=frames, filename_prefix="overlap/whole").result
    assert video.get_components().images.shape[0] == 40
    assert "40 frames" in report


def test_models_come_and_go_in_one_thread_at_a_time(run_node, node_classes, monkeypatch):
    """Of all runs of the process: what ComfyUI loads for one may unload what another uses."""
    import comfy.model_management as mm

    model = run_node("TalkingHeadMuseTalkLoader", checkpoint="embedded", precision="fp32").result[0]
    context = node_classes["TalkingHeadWriteVideo"].execute.__func__.__globals__["ComfyContext"]
    inside, most, load = [], [], mm.load_models_gpu

    def slow(*args, **kwargs):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return load(*args, **kwargs)

    monkeypatch.setattr(mm, "load_models_gpu", slow)
    one = context()
    threads = [threading.Thread(target=ctx.load, args=(model,)) for ctx in (one, one.nested(), context())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
