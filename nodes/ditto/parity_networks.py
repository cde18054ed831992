"""Ditto's image networks against their goldens: what parity runs for nets.safetensors and the manifests.

Each function yields one result for a network and batch size. Full tensors are reduced as nets_stats.json says before
they are compared; the norm of the full tensor is compared as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor, nn

from ..core.parity_measure import Result, Tolerance, close, exact, not_run, record
from ..core.weights import on_meta
from .config import OFFICIAL
from .decoder import SpadeDecoder, official_shapes
from .fast import FastDecoder, fold_batch_norms
from .motion import MotionOutput
from .networks import NETWORKS
from .parity_recipe import DittoGoldens, recipe_state
from .warp import sample_volume

_STEP = re.compile(r"reshape\(-1\)\[::(\d+)\]$")
_IMAGE = "x[:, :, 3::8, 5::8]"
_BATCHES = (1, 2)
_INNER_SKIPPED = "bounds in lower precision are stated for outputs only"


def stored_sample(full: Tensor, rule: str) -> Tensor:
    """Return what the goldens keep of `full`: every n-th value of an item, every 8th pixel, or all. ValueError else."""
    if rule == "full":
        return full
    if rule == _IMAGE:
        return full[:, :, 3::8, 5::8]
    if found := _STEP.search(rule):
        return full.flatten(1)[:, :: int(found[1])]
    raise ValueError(f"nets_stats.json has the sample rule {rule!r}: only full, steps and {_IMAGE} are known")


def manifest(goldens: DittoGoldens, name: str) -> Iterator[Result]:
    """Keys, their order and shapes of network `name`; then the recipe's weights against the stored first values."""
    described = goldens.json(f"manifest_{name}")
    own = official_layout(name)
    pairs = {
        "n_keys": (len(own), described["n_keys"]),
        "names": (list(own), [entry["key"] for entry in described["keys"]]),
        **{entry["key"]: (list(own.get(entry["key"], ())), entry["shape"]) for entry in described["keys"]},
    }
    yield exact(f"manifest_{name}", pairs, f"{len(own)} keys")
    if not goldens.has("weight_probes.json"):
        yield not_run(f"manifest_{name}.recipe", "weight_probes.json is not beside it")
        return
    state, ends, norms = recipe_state(name, own), {}, {}
    for key, (first, last, _, norm) in goldens.json("weight_probes")[name].items():
        flat, scale = state[key].flatten().double(), norm or 1.0
        ends[key] = ([flat[0].item(), flat[-1].item()], [first, last])
        norms[key] = (flat.norm().item() / scale, norm / scale)
    yield close(f"manifest_{name}.recipe_ends", ends, Tolerance(3e-7))
    yield close(f"manifest_{name}.recipe_norm", norms, Tolerance(1e-6), "relative")


def official_layout(name: str) -> dict[str, tuple[int, ...]]:
    """Return key -> shape of the official file of network `name`, in its order; no memory is taken."""
    part, cls = NETWORKS[name]
    module = on_meta(cls, getattr(OFFICIAL, part))
    if isinstance(module, SpadeDecoder):
        return official_shapes(module)
    return {key: tuple(value.shape) for key, value in module.state_dict().items()}


def appearance(goldens: DittoGoldens, batches: Iterable[int] = _BATCHES) -> Iterator[Result]:
    net = goldens.net("appearance_extractor")
    for batch in batches:
        volume = net(goldens.inputs("image", batch))
        yield compared(goldens, f"appearance.b{batch}", {"f_s": volume})


def motion(goldens: DittoGoldens, batches: Iterable[int] = _BATCHES) -> Iterator[Result]:
    net = goldens.net("motion_extractor")
    for batch in batches:
        features = net.features(goldens.inputs("image", batch))
        found = dict(zip(MotionOutput._fields, net.heads(features), strict=True))
        yield compared(goldens, f"motion.b{batch}", {**found, "features": features})


def warp(goldens: DittoGoldens, batches: Iterable[int] = _BATCHES) -> Iterator[Result]:
    net = goldens.net("warp_network")
    for batch in batches:
        volume = goldens.inputs("feature_3d", batch)
        kp_source, kp_driving = (
            goldens.inputs(name, batch, cast=False).to(goldens.device) for name in ("kp_source", "kp_driving")
        )
        parts = net.dense_motion_network.parts(volume, kp_driving, kp_source)
        warped = sample_volume(volume, parts.deformation)
        named = parts._asdict()
        for short, ours in (
            ("hourglass_input_110", "hourglass_input"),
            ("hourglass_output_142", "hourglass_output"),
        ):
            named[short] = named.pop(ours)
        named["warped_volume"] = warped
        outputs = {"out": net.project(warped, parts.occlusion)}
        yield from _with_inner(goldens, f"warp.b{batch}", outputs, named)


def decoder(goldens: DittoGoldens, batches: Iterable[int] = _BATCHES) -> Iterator[Result]:
    net = goldens.net("decoder")
    names = ("fc", "G_middle_0", "G_middle_5", "up_0", "up_1")
    for batch in batches:
        image, seen = _recorded(net, goldens.inputs("feature", batch), names if batch == 1 else ())
        yield from _with_inner(goldens, f"decoder.b{batch}", {"image": image}, seen)


def _recorded(net: nn.Module, x: Tensor, names: tuple[str, ...]) -> tuple[Tensor, dict[str, Tensor]]:
    outputs = []
    seen = record(net, names, lambda: outputs.append(net(x)))
    return outputs[0], seen


def stitch(goldens: DittoGoldens, batches: Iterable[int] = _BATCHES) -> Iterator[Result]:
    """The stitching network, float32 in every precision, as upstream."""
    net = goldens.net("stitch_network").float()
    for batch in batches:
        kp = (goldens.inputs(n, batch, cast=False).to(goldens.device) for n in ("kp_source", "kp_driving"))
        yield compared(goldens, f"stitch.b{batch}", {"out": net(*kp)})


def chain(goldens: DittoGoldens) -> Iterator[Result]:
    """Picture -> volume -> warped features -> picture."""
    features = goldens.net("warp_network")(*_chained(goldens))
    yield compared(goldens, "chain", {"warp_out": features, "image": goldens.net("decoder")(features)})


def fast_chain(goldens: DittoGoldens) -> Iterator[Result]:
    """The same through the fast form of warping and decoding."""
    warp, decoder = fold_batch_norms(goldens.net("warp_network")), FastDecoder(goldens.net("decoder"))
    features = warp(*_chained(goldens))
    found = {"warp_out": features, "image": decoder(features)}
    yield replace(compared(goldens, "chain", found), name="nets.chain (fast form)")


def _chained(goldens: DittoGoldens) -> tuple[Tensor, ...]:
    volume = goldens.net("appearance_extractor")(goldens.inputs("image", 1))
    names = ("kp_source", "kp_driving")
    return volume, *(goldens.inputs(n, 1, cast=False).to(goldens.device) for n in names)


def _with_inner(
    goldens: DittoGoldens, name: str, outputs: Mapping[str, Tensor], inner: Mapping[str, Tensor]
) -> Iterator[Result]:
    if goldens.precision == "fp32":
        yield compared(goldens, name, {**inner, **outputs})
        return
    yield compared(goldens, name, outputs)
    if inner:
        yield not_run(f"{name}.inner", f"{len(inner)} inner tensors in {goldens.precision}: {_INNER_SKIPPED}")


def compared(
    goldens: DittoGoldens,
    name: str,
    found: Mapping[str, Tensor],
    limit: Tolerance | None = None,
    label: str = "",
) -> Result:
    """One result for the tensors `found`: the stored sample and the norm of the whole, against `name`.KEY.

    limit: the picture networks' if not given. label: of the result, nets.`name` if not given. ValueError for a tensor of
    another shape.
    """
    stats, data = goldens.json("nets_stats"), goldens.tensors("nets", f"{name}.")
    pairs = {}
    for key, value in found.items():
        described = stats[f"{name}.{key}"]
        if list(value.shape) != described["shape"]:
            raise ValueError(
                f"{name}.{key} has the shape {tuple(value.shape)} instead of {described['shape']}"
            )
        full = value.detach().float().cpu()
        pairs[key] = (stored_sample(full, described["sample"]), data[f"{name}.{key}"])
        if goldens.has_own_norms:
            norm = described["l2"]
            pairs[f"{key} (norm)"] = (full.double().norm().item() / norm, 1.0)
    return close(label or f"nets.{name}", pairs, limit or goldens.network)
