"""LMDM and the motion made with it against their goldens; float32 in every precision, as upstream.

Each function yields results for one file, or for its part of nets.safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..core.parity_measure import Result, Tolerance, close, exact, not_run
from ..core.weights import load_strict, on_meta
from .audio2motion import MotionSampler, MotionStream, WindowScheme
from .condition import Condition, FaceShape
from .drive import DriveOptions, KeypointDriver
from .geometry import pack_motion
from .lmdm import LMDM, LMDMConfig
from .motion import MotionOutput
from .parity_networks import compared
from .parity_recipe import DittoGoldens, recipe_network, recipe_state, seeded
from .schedule import MotionNoise, ddim_steps, sample

STEPS = (2, 4, 10, 25, 50)
_LATE = "t19.pred_noise"
"""x0 enters it times 65: its largest difference may be that much larger."""
_CLIP = (80, 265)
_INPUTS = ("x", "cond_frame", "cond")
_networks: WeakKeyDictionary[DittoGoldens, LMDM] = WeakKeyDictionary()


def limits(goldens: DittoGoldens, worst: float = 1e-3) -> Tolerance:
    """Return the bounds for float32 on the goldens' device."""
    cpu = torch.device(goldens.device).type == "cpu"
    return Tolerance(worst, relative=5e-5) if cpu else Tolerance(4 * worst, relative=2e-4)


def network(goldens: DittoGoldens) -> LMDM:
    """Return LMDM with the recipe's weights on the goldens' device, built once."""
    if goldens not in _networks:
        net = on_meta(LMDM, LMDMConfig())
        load_strict(net, recipe_state("lmdm", layout()), "the recipe's weights")
        _networks[goldens] = net.eval().requires_grad_(False).to(goldens.device)
    return _networks[goldens]


def lmdm_input(goldens: DittoGoldens, what: str, batch: int) -> Tensor:
    """Return `batch` items of x, cond_frame or cond of recipe.json."""
    return torch.stack([goldens.one_input(what, b) for b in range(batch)]).to(goldens.device)


def manifest(goldens: DittoGoldens) -> Iterator[Result]:
    """Keys, their order and shapes; then the recipe's weights against the stored first values."""
    described = goldens.json("manifest_lmdm")
    own = layout()
    pairs = {
        "n_keys": (len(own), described["n_keys"]),
        "names": (list(own), [entry["key"] for entry in described["keys"]]),
        **{entry["key"]: (list(own.get(entry["key"], ())), entry["shape"]) for entry in described["keys"]},
    }
    yield exact("manifest_lmdm", pairs, f"{len(own)} keys")
    if not goldens.has("weight_probes.json"):
        yield not_run("manifest_lmdm.recipe", "weight_probes.json is not beside it")
        return
    state, ends, norms = recipe_state("lmdm", own), {}, {}
    for key, (first, last, _, norm) in goldens.json("weight_probes")["lmdm"].items():
        flat = state[key].flatten().double()
        ends[key] = ([flat[0].item(), flat[-1].item()], [first, last])
        norms[key] = (flat.norm().item() / norm, 1.0)
    yield close("manifest_lmdm.recipe_ends", ends, Tolerance(3e-7))
    yield close("manifest_lmdm.recipe_norm", norms, Tolerance(1e-6), "relative")


def steps(goldens: DittoGoldens) -> Iterator[Result]:
    """Single steps: both batch sizes, three times, both passes, and two times in one batch."""
    net = network(goldens)
    for batch, times in ((1, (999,)), (2, (999, 500, 19))):
        x, frame, cond = (lmdm_input(goldens, name, batch) for name in _INPUTS)
        for time in times:
            at = torch.full((batch,), time, device=goldens.device)
            noise, x0 = net(x, frame, cond, at)
            yield _compared(goldens, f"lmdm.b{batch}.t{time}", {"pred_noise": noise, "x_start": x0})
        if batch == 1:
            at = torch.full((1,), 500, device=goldens.device)
            both = net.predictions(x, frame, *net.encode(cond), at)
            yield _compared(goldens, "lmdm.b1.t500", {"x0_drop0": both[:, 0], "x0_drop1": both[:, 1]})
        else:
            mixed = torch.tensor([999, 19], device=goldens.device)
            yield _compared(goldens, "lmdm.b2.mixed_t", {"x_start": net(x, frame, cond, mixed)[1]})


def ddim(goldens: DittoGoldens, counts: tuple[int, ...] = STEPS) -> Iterator[Result]:
    """Whole samplings with the recipe's noise."""
    net = network(goldens)
    frame, cond = (lmdm_input(goldens, name, 1) for name in ("cond_frame", "cond"))
    shared = net.encode(cond)

    def denoise(x: Tensor, time: Tensor) -> Tensor:
        return net.denoise(x, frame, *shared, time)

    for n in counts:
        noises = [_noise(goldens, f"ddim.noise.{i}") for i in range(n - 1)]
        made = sample(denoise, ddim_steps(n), _noise(goldens, "ddim.xT"), noises)
        yield _compared(goldens, "lmdm", {f"ddim{n}": made})


def seeded_session(goldens: DittoGoldens) -> Iterator[Result]:
    """Upstream's own order of draws after a seed: the noise of the steps, then a start for each of two clips."""
    sampler = MotionSampler(network(goldens), MotionNoise(1024, 4, 1.0, _CLIP))
    frame, cond = (lmdm_input(goldens, name, 1) for name in ("cond_frame", "cond"))
    found = {f"call{i}": sampler(frame, cond) for i in range(2)}
    yield _compared(goldens, "lmdm.ddim4.global_seed1024", found)


def end_to_end(goldens: DittoGoldens) -> Iterator[Result]:
    """Speech rows to key points: conditions, two windows, joint, smoothing, then the motion put onto its source."""
    case, stored = goldens.json("e2e_motion")["offline"], goldens.tensors("e2e_motion")
    source = source_pose(stored, "source")
    face = FaceShape(torch.tensor([case["eye_open"]]), torch.tensor([case["eye_ball"]]), source.kp)
    scheme = WindowScheme(
        overlap=case["overlap_v2"],
        online=case["online_mode"],
        smooth=case["smo_k_d"],
        fix_every=case["fix_kp_cond"],
        upstream_smoothing=True,
    )
    sampler = MotionSampler(network(goldens), MotionNoise(1024, case["steps"], 1.0, _CLIP))
    stream = MotionStream(sampler, Condition(face, case["emo"]), scheme, pack_motion(source))
    made = torch.cat([stream.feed(seeded("e2e.aud", (100, 1024))), stream.finish()])
    pairs = {"motion": (made, stored["offline.res_kp_seq_265"])}
    yield close("e2e_motion.res_kp_seq_265", pairs, limits(goldens))
    options = DriveOptions(control=case["overall_ctrl_info"], as_upstream=True)
    driver = KeypointDriver(source, True, options, recipe_network("stitch_network"), stream.reference[0])
    kp_source, kp_driving = driver(made)
    pairs = {"x_s": (kp_source, stored["offline.x_s"]), "x_d": (kp_driving, stored["offline.x_d"])}
    yield close("e2e_motion.key_points", pairs, limits(goldens))


def source_pose(stored: dict[str, Tensor], prefix: str) -> MotionOutput:
    """Return the pose stored as `prefix`.pitch and so on."""
    return MotionOutput(*(stored[f"{prefix}.{name}"] for name in MotionOutput._fields))


def layout() -> dict[str, tuple[int, ...]]:
    """Return key -> shape of the official file, in its order."""
    return {key: tuple(value.shape) for key, value in on_meta(LMDM, LMDMConfig()).state_dict().items()}


def _noise(goldens: DittoGoldens, name: str) -> Tensor:
    return goldens.draw(name, (1, *_CLIP)).to(goldens.device)


def _compared(goldens: DittoGoldens, name: str, found: dict[str, Tensor]) -> Result:
    """One result for `found`: what the goldens keep of each, and the norm of the whole, against `name`.KEY."""
    late = any(f"{name}.{key}".endswith(_LATE) for key in found)
    label = f"nets.{name}" + (f".{next(iter(found))}" if len(found) == 1 else "")
    return compared(goldens, name, found, limits(goldens, 5e-3 if late else 1e-3), label)
