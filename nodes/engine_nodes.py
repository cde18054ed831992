"""Engine node: shows, builds and clears what runs the networks."""

from __future__ import annotations

import comfy.utils
import torch
from comfy_api.latest import io

from .comfy_nodes import AnyModel, ComfyContext, any_model_input
from .core.engine import MAX_STATIC_BATCH
from .core.engine_cache import EngineCache
from .core.engine_report import describe_engines, row_text

ACTIONS = ("show", "build", "clear")


class Engine(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TalkingHeadEngine",
            display_name="Engine",
            category="Talking Head/engine",
            description=(
                "Builds the fastest way to run a model on this machine, once, and keeps it in "
                "models/talkinghead/engines; renders then find it. Not needed on a CPU."
            ),
            inputs=[
                any_model_input("From a Loader. Its precision and backend are what is built."),
                io.Combo.Input(
                    "action",
                    options=list(ACTIONS),
                    default=ACTIONS[0],
                    tooltip=(
                        "show: list what is built and whether it fits this machine. build: make the engine and measure "
                        "it against fp32; minutes the first time. clear: delete every built engine."
                    ),
                ),
                io.Int.Input(
                    "batch",
                    default=8,
                    min=1,
                    max=MAX_STATIC_BATCH,
                    tooltip="Frames of one pass; set the same in the Render node, an engine has one batch. 8 fits most cards.",
                ),
            ],
            outputs=[
                AnyModel.Output("MODEL", display_name="model"),
                io.String.Output("REPORT", display_name="report"),
            ],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, action: str, batch: int) -> float:
        return float("nan")  # what lies on the disk changes without the node's knowing

    @classmethod
    def execute(cls, model: object, action: str, batch: int) -> io.NodeOutput:
        ctx, lines = ComfyContext(), []
        if action == "build":
            lines += _build(ctx, model, batch)
        elif action == "clear":
            ctx.close_engines()
            deleted, size = EngineCache(ctx.engine_cache).clear()
            lines.append(f"deleted {len(deleted)} files and folders, {size >> 20} MB")
        rows = describe_engines(ctx.engine_cache, torch.device(ctx.device))
        lines += [row_text(row) for row in rows] or [f"no built engines in {ctx.engine_cache}"]
        text = "\n".join([*lines, *filter(None, [ctx.report.text()])])
        return io.NodeOutput(model, text, ui={"text": [text]})


def _build(ctx: ComfyContext, model: object, batch: int) -> list[str]:
    from .avatars.engines import build_engine

    bar = comfy.utils.ProgressBar(2)
    facts = build_engine(ctx, model, batch, progress=bar.update_absolute)
    return [f"{name}: {value}" for name, value in facts.items()]


NODES = [Engine]
