"""What tests of every folder share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
OUT = ROOT / "out"


def unavailable(reason: str) -> None:
    """Skip the test, saying why; under CI what is missing is a failure."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"{reason} (a skip outside CI)", pytrace=False)
    pytest.skip(reason)
