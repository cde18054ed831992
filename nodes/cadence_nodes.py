"""Cadence node: how often the network draws, and whether the mouth rests in silence."""

from __future__ import annotations

import torch
from comfy_api.latest import io

from .comfy_nodes import Cadence as CadenceSocket
from .comfy_nodes import Speech
from .core.cadence import MAX_CACHE_MB, MODES, Cadence, CadenceOptions
from .core.cadence_picture import draw_cadence
from .core.report import Report


class CadenceNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadCadence",
            display_name="Cadence",
            category="Talking Head/speech",
            description=(
                "Plans which video frames the network draws, which are interpolated between them, and where the mouth "
                "rests. Connect it to MuseTalk Render or Ditto Render; without it every frame is drawn and the mouth never rests."
            ),
            inputs=[
                Speech.Input("speech", tooltip="From Speech Features; Render must get the same one."),
                io.Combo.Input(
                    "mode",
                    options=list(MODES),
                    default=MODES[0],
                    tooltip=(
                        "dense: every frame, the best lips, and the default. 2, 3: every second or third frame, the "
                        "others interpolated; 3 blurs quick lips. adaptive: by loudness, close to dense in lively speech."
                    ),
                ),
                io.Float.Input(
                    "rms_threshold",
                    default=0.008,
                    min=0.0,
                    max=1.0,
                    step=0.0005,
                    round=0.00001,
                    tooltip=(
                        "Loudness (RMS, full scale 1) from which sound is speech. Below it adaptive draws every third "
                        "frame; below half of it for 0.12 s the mouth rests. 0.008 is -42 dBFS, under quiet speech and over "
                        "room noise; 0 means never."
                    ),
                ),
                io.Float.Input(
                    "flux_threshold",
                    default=0.0035,
                    min=0.0,
                    max=1.0,
                    step=0.0005,
                    round=0.00001,
                    tooltip=(
                        "For adaptive: change of loudness from one frame to the next above which the frame is drawn. "
                        "0.0035 keeps plosives; higher draws less."
                    ),
                ),
                io.Boolean.Input(
                    "rest",
                    default=True,
                    tooltip=(
                        "In silence and after speech the mouth closes within three frames and is still, and nothing is "
                        "computed. On by default: mouths that quiver in pauses are MuseTalk's best known fault. Off draws silence like any sound."
                    ),
                ),
                io.Int.Input(
                    "viseme_cache_mb",
                    default=0,
                    min=0,
                    max=MAX_CACHE_MB,
                    step=16,
                    optional=True,
                    tooltip=(
                        "MB of memory for mouths that are shown again instead of decoding nearly the same once more; 64 "
                        "holds over 1000. 0 is off, the default: a still picture gains (about half of the frames need no "
                        "decoding), a moving avatar hardly, and recalled mouths differ a little (40 dB or better)."
                    ),
                ),
            ],
            outputs=[
                CadenceSocket.Output("CADENCE", display_name="cadence"),
                io.Image.Output("PICTURE", display_name="picture"),
                io.String.Output("REPORT", display_name="report"),
            ],
        )

    @classmethod
    def execute(
        cls,
        speech: object,
        mode: str,
        rms_threshold: float,
        flux_threshold: float,
        rest: bool,
        viseme_cache_mb: int = 0,
    ) -> io.NodeOutput:
        options = CadenceOptions(mode, rms_threshold, flux_threshold, rest, viseme_cache_mb)
        cadence = Cadence(speech.audio, speech.fps, options)
        report = Report()
        drawn = draw_cadence(cadence, report)
        drawn.mix.tell(report)
        picture = torch.from_numpy(drawn.picture).float()[None] / 255
        return io.NodeOutput(cadence, picture, report.text())


NODES = [CadenceNode]
