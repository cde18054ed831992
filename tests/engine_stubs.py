"""A stage of a few numbers, and backends that fail as real ones do."""

from __future__ import annotations

import torch

from talkinghead.nodes.core.engine_spec import StageSpec, TensorSpec

SPEC = StageSpec(
    "stub",
    inputs=(TensorSpec("a", (3, 4), torch.float32), TensorSpec("b", (5,), torch.float32)),
    outputs=(TensorSpec("total", (3,), torch.float32), TensorSpec("big", (), torch.bool)),
)


def stub_stage(a, b):
    """total (B, 3): sums of a's rows plus the sum of b; big (B,): whether the first total is above 0."""
    total = a.sum(2) + b.sum(1)[:, None]
    return {"total": total, "big": total[:, 0] > 0}


def rows(n, seed=1):
    return SPEC.sample(n, "cpu", seed)


class StubRunner:
    """Runs the stage as told. `order`: outputs listed in another order; `fail`: called with the number of the call."""

    def __init__(self, request, order=None, fail=None):
        self.request, self.order, self.fail = request, order, fail
        self.calls, self.closed = 0, False

    def __call__(self):
        self.calls += 1
        if self.fail:
            self.fail(self.calls, self.request.batch)
        out = self.request.function(**self.request.inputs)
        return {name: out[name] for name in self.order or out}

    def close(self):
        self.closed = True
