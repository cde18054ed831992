"""Ditto's goldens: what `talkinghead parity DIR` runs for each file of a directory like tests/golden/ditto.

It may be a part of that, or of the same form with other inputs: `input_salt` of its recipe.json stands in front of every name
of an input (`input.`, `ddim.`) before it is hashed. Weights follow from their names and know no salt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from torch import Tensor

from ..core.parity_measure import Result, Tolerance, close, exact, not_run, some
from ..core.parity_run import GoldenKind, ParitySummary, Run, run_goldens
from . import parity_lmdm as lmdm
from . import parity_motion as motion
from . import parity_networks as networks
from . import parity_pure as pure
from .networks import NETWORKS
from .parity_detect import detect
from .parity_recipe import GAINS, DittoGoldens, first_values

_BATCHES = (1, 2)
_ABSENT = "nets.safetensors has none of its tensors"


def recipe(goldens: DittoGoldens) -> Iterator[Result]:
    """The gains of the weights; the salt is said."""
    salt = f"inputs are salted with {goldens.salt!r}" if goldens.salt else "inputs have no salt"
    described = goldens.json("recipe")
    if "gains" in described:
        yield exact("recipe.gains", {"gains": (GAINS, described["gains"])}, salt)
    else:
        yield not_run("recipe.gains", f"recipe.json has none; {salt}")


def weight_probes(goldens: DittoGoldens) -> Iterator[Result]:
    """Which tensors of which networks are probed; their values are compared with each manifest."""
    pairs = {}
    for name, probes in goldens.json("weight_probes").items():
        own = lmdm.layout() if name == "lmdm" else networks.official_layout(name)
        counters = {key for key, shape in own.items() if not shape}
        pairs[name] = (sorted(set(own) - counters), sorted(probes))
    yield exact("weight_probes", pairs, f"{len(pairs)} networks")


def input_probes(goldens: DittoGoldens) -> Iterator[Result]:
    """First and last values, mean, deviation, norm and range of every input."""
    described, given, plain = goldens.json("input_probes"), {}, {}
    for name, probe in some(list(described.items()), "input_probes"):
        what, _, item = name.partition(".")
        for inputs, pairs in ((goldens.one_input, given), (goldens.without_salt.one_input, plain)):
            pairs[name] = _probed(inputs(what, int(item)), probe)
    limit = Tolerance(2e-6)
    result = close("input_probes", given, limit, f"{len(given)} inputs, relative to their norms")
    if goldens.salt and close("plain", plain, limit).status == "ok":
        result = not_run("input_probes", "these are the values without the salt")
    yield result


def _probed(value: Tensor, probe: dict) -> tuple[list[float], list[float]]:
    own, scale = first_values(value), max(1.0, probe["l2"])
    return (
        [*own["first"], own["last"], own["mean"], own["std"], own["min"], own["max"], own["l2"] / scale],
        [
            *probe["first"],
            *(probe[key] for key in ("last", "mean", "std", "min", "max")),
            probe["l2"] / scale,
        ],
    )


def nets_stats(goldens: DittoGoldens) -> Iterator[Result]:
    """That every tensor is described; what is described is compared with its network."""
    described = goldens.json("nets_stats")
    yield exact(
        "nets_stats", {"names": (sorted(goldens.names("nets")), sorted(described))}, f"{len(described)} names"
    )
    if not goldens.has_own_norms:
        yield not_run("nets_stats.l2", "the norms are those of other inputs than nets.safetensors holds")


def _network(goldens: DittoGoldens, name: str) -> Iterator[Result]:
    """A picture network, in the batch sizes that are stored."""
    stored = goldens.names("nets")
    batches = [b for b in _BATCHES if any(key.startswith(f"{name}.b{b}.") for key in stored)]
    if not batches:
        yield not_run(f"nets.{name}", _ABSENT)
        return
    yield from getattr(networks, name)(goldens, batches)


def _if_stored(goldens: DittoGoldens, prefix: str, label: str, run: Run) -> Iterator[Result]:
    if any(key.startswith(prefix) for key in goldens.names("nets")):
        yield from run(goldens)
    else:
        yield not_run(f"nets.{label}", _ABSENT)


def _samplings(goldens: DittoGoldens) -> Iterator[Result]:
    stored = goldens.names("nets")
    counts = tuple(n for n in lmdm.STEPS if f"lmdm.ddim{n}" in stored)
    yield from lmdm.ddim(goldens, counts) if counts else [not_run("nets.lmdm.ddim", _ABSENT)]


def _picture_to_picture(goldens: DittoGoldens) -> Iterator[Result]:
    """Both forms, and then the large networks are not needed again."""
    yield from networks.chain(goldens)
    yield from networks.fast_chain(goldens)
    for name in NETWORKS:
        goldens.drop(name)


def _both(name: str, run: Run) -> list[tuple[str, Run, tuple[str, ...]]]:
    """A golden of two files."""
    files = f"{name}.json", f"{name}.safetensors"
    return [(file, run, (other,)) for file, other in zip(files, files[::-1], strict=True)]


def _together(*runs: Run) -> Run:
    """Return one function of several."""

    def run(goldens: DittoGoldens) -> Iterator[Result]:
        for each in runs:
            yield from each(goldens)

    return run


_STATS = ("nets_stats.json",)
_NETS: tuple[Run, ...] = (
    *(partial(_network, name=name) for name in ("stitch", "motion", "appearance", "warp", "decoder")),
    partial(_if_stored, prefix="chain.", label="chain", run=_picture_to_picture),
    partial(_if_stored, prefix="lmdm.b", label="lmdm", run=lmdm.steps),
    _samplings,
    partial(
        _if_stored, prefix="lmdm.ddim4.global", label="lmdm.ddim4.global_seed1024", run=lmdm.seeded_session
    ),
)
_GOLDENS: tuple[tuple[str, Run, tuple[str, ...]], ...] = (
    ("recipe.json", recipe, ()),
    ("input_probes.json", input_probes, ()),
    ("weight_probes.json", weight_probes, ()),
    *((f"manifest_{name}.json", partial(networks.manifest, name=name), ()) for name in NETWORKS),
    ("manifest_lmdm.json", lmdm.manifest, ()),
    *_both("geometry", pure.geometry),
    *_both("crop", pure.crop),
    *_both("detect", detect),
    *_both("motion_stitch", pure.motion_stitch),
    *_both("putback", pure.putback),
    *_both("schedule", motion.schedule),
    *_both("condition", motion.condition),
    *_both("audio2motion", motion.joins),
    *_both("audio", _together(motion.speech_windows, motion.speech_order)),
    *_both("e2e_motion", lmdm.end_to_end),
    ("nets_stats.json", nets_stats, ("nets.safetensors",)),
    *(("nets.safetensors", run, _STATS) for run in _NETS),
)  # fmt: skip
_NOT_RUN = {
    "nets_noise.json": "how far the reference itself moves with the arithmetic: where the tolerances come from",
    "sensitivity.json": "how far typical mistakes lie from the reference: they are not made here",
}
KIND = GoldenKind("Ditto", _GOLDENS, _NOT_RUN, "tests/golden/ditto", DittoGoldens)


def run_parity(
    directory: Path, device: str = "cpu", dtype: str = "fp32", out: Callable[[str], object] = print
) -> ParitySummary:
    """Run every golden file of Ditto in `directory`; see core.parity_run.run_goldens."""
    return run_goldens(KIND, directory, device, dtype, out)
