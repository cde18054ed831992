"""The two training stages, run by the loop of `tools/demo/train.py` (one CUDA graph a step, cosine over wall time)."""

import sys

from demo import train as loop

from .motion_stage import MotionStage
from .picture_stage import PictureStage

STAGES = {"picture": PictureStage, "motion": MotionStage}


def main(argv: list[str] | None = None) -> None:
    loop.main(sys.argv[2:] if argv is None else argv, STAGES)
