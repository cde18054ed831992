"""Nodes at the ends of a frame stream: writing a video, and the doors to ComfyUI's IMAGE."""

from __future__ import annotations

import json
from pathlib import Path

import folder_paths
import torch
from comfy.cli_args import args
from comfy_api.latest import InputImpl, io, ui

from .comfy_nodes import ComfyContext, Frames
from .core.audio import MemoryAudio, from_comfy, is_empty
from .core.double_fps import DoubledStream
from .core.encoders import CODECS, QUALITIES
from .core.frames import TensorStream
from .core.images import image_batch, image_notes, rgb_frames
from .core.timeline import parse_fps
from .core.video_write import WriteOptions, write_video
from .preview_routes import live_preview

MAX_IMAGE_BYTES = 8 << 30
SMOOTH = ("off", "double")


class WriteVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadWriteVideo",
            display_name="Write Video",
            category="Talking Head/video",
            description=(
                "Runs the whole stream and writes an MP4 with sound into the output folder, in constant memory. "
                "The node plays what exists while it runs. An interrupted or failed run leaves no file."
            ),
            inputs=[
                Frames.Input("frames", tooltip="Frames from Composite or Images to Frames."),
                io.Audio.Input(
                    "audio", optional=True, tooltip="Sound of the video; without it the video is silent."
                ),
                io.String.Input(
                    "filename_prefix",
                    default="talkinghead/video",
                    tooltip="Folder and start of the file name below ComfyUI's output folder; a number is added.",
                ),
                io.Combo.Input(
                    "codec",
                    options=list(CODECS),
                    default=CODECS[0],
                    tooltip=(
                        "auto: H.264, by NVENC if this machine can open it, else x264; the report says which and why. "
                        "HEVC and AV1 make smaller files that fewer players read."
                    ),
                ),
                io.Combo.Input(
                    "quality",
                    options=list(QUALITIES),
                    default="balanced",
                    tooltip="draft is quickest, high is for masters; balanced keeps up with live speed on two cores.",
                ),
                io.Combo.Input(
                    "smooth",
                    options=list(SMOOTH),
                    default=SMOOTH[0],
                    optional=True,
                    tooltip=(
                        "double: twice the frames a second, 25 become 50, by optical flow; the sound stays. "
                        "off by default: it costs 20 to 150 ms a frame at 1080x1920."
                    ),
                ),
            ],
            outputs=[io.Video.Output("VIDEO"), io.String.Output("REPORT", display_name="report")],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo, io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(
        cls, frames, filename_prefix: str, codec: str, quality: str, audio=None, smooth: str = SMOOTH[0]
    ) -> io.NodeOutput:
        width, height = frames.info.width, frames.info.height
        folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(
            filename_prefix, folder_paths.get_output_directory(), width, height
        )
        file = f"{name}_{counter:05}_.mp4"
        if smooth == "double":
            frames = DoubledStream(frames)
        ctx = ComfyContext()
        clip = _sound(audio, ctx)
        with live_preview(cls.hidden.unique_id, ctx.report, frames.info) as tap:
            options = WriteOptions(codec=codec, quality=quality, metadata=_workflow(cls), tap=tap)
            result = write_video(frames, Path(folder) / file, ctx, clip, options)
        shown = ui.PreviewVideo([ui.SavedResult(file, subfolder, io.FolderType.output)])
        return io.NodeOutput(InputImpl.VideoFromFile(str(result.path)), ctx.report.text(), ui=shown)


class FramesToImages(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadFramesToImages",
            display_name="Frames to Images",
            category="Talking Head/video",
            description=(
                "Runs a stream up to the frames you ask for and gives them as IMAGE, for any other node. "
                "For whole videos use Write Video: a minute of 1080p as IMAGE is 37 GB."
            ),
            inputs=[
                Frames.Input("frames", tooltip="Any stream of frames, crops too."),
                io.Int.Input(
                    "start", default=0, min=0, max=10_000_000, tooltip="First frame, counted from 0."
                ),
                io.Int.Input(
                    "count",
                    default=25,
                    min=0,
                    max=100_000,
                    tooltip="How many frames; 0 means all that are left.",
                ),
            ],
            outputs=[io.Image.Output("IMAGE")],
        )

    @classmethod
    def execute(cls, frames, start: int, count: int) -> io.NodeOutput:
        return io.NodeOutput(_collect(ComfyContext(), frames, start, count))


class ImagesToFrames(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadImagesToFrames",
            display_name="Images to Frames",
            category="Talking Head/video",
            description=(
                "Turns an IMAGE batch into a stream for Write Video, as 8-bit RGB. "
                "Gray is repeated, transparency is laid on black."
            ),
            inputs=[
                io.Image.Input("image", tooltip="Frames in order."),
                io.String.Input("fps", default="25", tooltip="Frames a second: 25, 29.97, 30000/1001, ..."),
            ],
            outputs=[Frames.Output("FRAMES", display_name="frames")],
        )

    @classmethod
    def execute(cls, image: torch.Tensor, fps: str) -> io.NodeOutput:
        return io.NodeOutput(TensorStream(rgb_frames(image).cpu(), parse_fps(fps), image_notes(image)))


def _sound(audio, ctx: ComfyContext) -> MemoryAudio | None:
    """Return the sound to write. Loaders give nothing, or a waveform of no samples, for a clip without sound."""
    if audio is None:
        return None
    if is_empty(audio):
        ctx.warn("the sound has 0 samples; the video has no sound track")
        return None
    return from_comfy(audio)


def _workflow(cls: type[io.ComfyNode]) -> dict[str, str]:
    """Return what lets a user drop the file on the page and get the graph back."""
    if args.disable_metadata:
        return {}
    kept = {"prompt": cls.hidden.prompt, **(cls.hidden.extra_pnginfo or {})}
    return {k: json.dumps(v) for k, v in kept.items() if v is not None}


def _collect(ctx: ComfyContext, frames, start: int, count: int) -> torch.Tensor:
    info = frames.info
    if info.n_frames is None:
        raise ValueError("a live stream has no known length to choose frames from; use Write Video")
    end = info.n_frames if count == 0 else min(info.n_frames, start + count)
    if start >= info.n_frames:
        raise ValueError(
            f"start {start} is behind the last frame; the stream has {info.n_frames} (0..{info.n_frames - 1})"
        )
    size = (end - start) * info.width * info.height * 3 * 4
    if size > MAX_IMAGE_BYTES:
        raise ValueError(
            f"{end - start} frames of {info.width}x{info.height} as IMAGE need {size / 2**30:.1f} GB, the limit is "
            f"{MAX_IMAGE_BYTES >> 30} GB; lower count or use Write Video"
        )
    kept = []
    chunks = frames.chunks(ctx, 8)
    try:
        for chunk in chunks:
            first, last = max(0, start - chunk.frame_start), end - chunk.frame_start
            if first < chunk.num_frames:
                kept.append(image_batch(chunk.frames[first:last]))
            ctx.tick(min(end, chunk.frame_start + chunk.num_frames), end)
            if chunk.frame_start + chunk.num_frames >= end:
                break
    finally:
        chunks.close()
    return torch.cat(kept)


NODES = [WriteVideo, FramesToImages, ImagesToFrames]
