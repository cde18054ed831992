"""Write Video's widgets: what saved graphs send still works, smoothing doubles, transparency is said."""

import torch

NODE = "TalkingHeadWriteVideo"


def frames(run_node, channels=3, count=6):
    image = torch.rand(count, 48, 64, channels, generator=torch.Generator().manual_seed(0))
    return run_node("TalkingHeadImagesToFrames", image=image, fps="25").result[0]


def test_widgets_are_only_appended(node_classes):
    inputs = node_classes[NODE].GET_SCHEMA().inputs
    names = [i.id for i in inputs]
    assert names[:5] == ["frames", "audio", "filename_prefix", "codec", "quality"]
    assert names[5] == "smooth"
    smooth = inputs[5]
    assert smooth.optional, "a graph saved before has no value for it"
    assert smooth.default == "off"
    assert list(inputs[3].options)[:3] == ["auto", "h264_nvenc", "libx264"]


def test_a_graph_saved_before_writes_as_it_did(run_node):
    video, report = run_node(NODE, frames=frames(run_node), filename_prefix="w/old").result
    assert video.get_components().frame_rate == 25
    assert "6 frames at 25 fps" in report


def test_smooth_doubles_the_rate(run_node):
    video, report = run_node(NODE, frames=frames(run_node), filename_prefix="w/50", smooth="double").result
    assert video.get_components().frame_rate == 50
    assert "12 frames at 50 fps, 0.24 s" in report


def test_transparent_images_are_said(run_node):
    _, report = run_node(NODE, frames=frames(run_node, 4), filename_prefix="w/alpha").result
    assert "warning: the images have transparency" in report
    _, report = run_node(NODE, frames=frames(run_node, 3), filename_prefix="w/plain").result
    assert "warning" not in report


def test_a_silent_film_goes_round(run_node):
    """Row 19: a clip without sound, its audio output wired to the writer, twice."""
    video = run_node(NODE, frames=frames(run_node), filename_prefix="w/silent").result[0]
    for _ in range(2):
        parts = video.get_components()
        stream = run_node("TalkingHeadImagesToFrames", image=parts.images, fps="25").result[0]
        video, report = run_node(NODE, frames=stream, audio=parts.audio, filename_prefix="w/again").result
        assert "6 frames at 25 fps" in report
        assert "sound:" not in report
    empty = {"waveform": torch.zeros(1, 1, 0), "sample_rate": 16000}
    _, report = run_node(NODE, frames=stream, audio=empty, filename_prefix="w/empty").result
    assert "warning: the sound has 0 samples" in report
