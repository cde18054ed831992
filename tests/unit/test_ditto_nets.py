"""Ditto's image networks at toy size: batches, devices, precision, what they refuse."""

from __future__ import annotations

import copy

import pytest
import torch
from ditto_parts import TINY, inputs, tiny_nets
from torch.overrides import TorchFunctionMode

from talkinghead.nodes.ditto.config import EMBEDDED, OFFICIAL
from talkinghead.nodes.ditto.networks import DittoNets, load_nets, save_nets
from talkinghead.nodes.ditto.warp import coordinate_grid, sample_volume

CALLS = {
    "appearance": ("image",),
    "motion": ("image",),
    "warp": ("volume", "kp_source", "kp_driving"),
    "decoder": ("features",),
    "stitch": ("kp_source", "kp_driving"),
}
FACTORIES = {
    *("arange", "linspace", "meshgrid", "zeros", "ones", "full", "empty", "tensor", "as_tensor", "eye"),
    *("rand", "randn", "scalar_tensor", "zeros_like", "ones_like", "from_numpy"),
}

pytestmark = pytest.mark.usefixtures("_no_grad")


@pytest.fixture
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def nets():
    return tiny_nets()


@pytest.fixture(scope="module")
def eight():
    return inputs(TINY, 8)


def outputs(nets, part, given):
    result = getattr(nets, part)(*(given[name] for name in CALLS[part]))
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("part", CALLS)
def test_a_batch_of_eight_is_eight_batches_of_one(nets, eight, part):
    whole = outputs(nets, part, eight)
    for i in range(8):
        alone = outputs(nets, part, {name: value[i : i + 1] for name, value in eight.items()})
        for together, single in zip(whole, alone, strict=True):
            assert (together[i : i + 1] - single).abs().max() <= 2e-6 * max(1, single.abs().max())
    for output in whole:
        distances = torch.cdist(output.flatten(1), output.flatten(1)) + 10 * torch.eye(8)
        assert distances.min() > 1e-3, "two items came out alike: something of item 0 is in all"


class _Watch(TorchFunctionMode):
    """Collects the names of functions that make tensors out of nothing."""

    def __init__(self):
        self.made = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.made.update({getattr(func, "__name__", "")} & FACTORIES)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("part", CALLS)
def test_nothing_is_made_in_forward_and_no_tensor_stays_on_the_host(nets, eight, part):
    with _Watch() as watch:
        expected = outputs(nets, part, eight)
    assert watch.made == set()
    elsewhere = copy.deepcopy(nets).to("meta")  # a tensor left on the CPU cannot meet those there
    found = outputs(elsewhere, part, {name: value.to("meta") for name, value in eight.items()})
    assert [(o.device.type, o.shape) for o in found] == [("meta", o.shape) for o in expected]


def test_the_watch_sees_what_it_looks_for():
    with _Watch() as watch:
        torch.arange(3)
        torch.zeros(2)
    assert watch.made == {"arange", "zeros"}


def test_the_three_steps_of_warping_make_the_whole(nets, eight):
    arguments = [eight[name] for name in CALLS["warp"]]
    deformation, occlusion = nets.warp.motion(*arguments)
    size, depth = TINY.warp.volume_size, TINY.warp.volume_depth
    assert deformation.shape == (8, depth, size, size, 3)
    assert occlusion.shape == (8, 1, size, size)
    stepwise = nets.warp.project(sample_volume(eight["volume"], deformation), occlusion)
    assert torch.equal(stepwise, nets.warp(*arguments))


def test_motionless_key_points_leave_the_grid(nets, eight):
    """With equal key points all motions agree, and the heat maps cancel."""
    kp = eight["kp_source"]
    parts = nets.warp.dense_motion_network.parts(eight["volume"], kp, kp)
    grid = coordinate_grid(TINY.warp.volume_depth, TINY.warp.volume_size, TINY.warp.volume_size)
    assert (parts.deformation - grid).abs().max() <= 1e-6
    assert parts.heatmap.abs().max() == 0


def test_the_grid_runs_from_minus_one_to_one_in_x_y_z():
    grid = coordinate_grid(3, 5, 9)
    assert grid.shape == (3, 5, 9, 3)
    assert grid[0, 0, 0].tolist() == [-1, -1, -1]
    assert grid[0, 0, -1].tolist() == [1, -1, -1]
    assert grid[0, -1, 0].tolist() == [-1, 1, -1]
    assert grid[1, 2, 4].tolist() == [0, 0, 0]


def test_sampling_follows_the_place(nets):
    """A single bright cell is found where its centre lies with edges, not centres, at -1 and 1."""
    volume = torch.zeros(1, 1, 4, 4, 4)
    volume[0, 0, 1, 2, 3] = 1
    centre = torch.tensor([3, 2, 1]).mul(2).add(1).div(4).sub(1)
    assert sample_volume(volume, centre.reshape(1, 1, 1, 1, 3)).item() == pytest.approx(1)
    outside = torch.tensor([1.5, 0.25, -0.25]).reshape(1, 1, 1, 1, 3)
    assert sample_volume(volume, outside).item() == 0


def test_half_precision_keeps_coordinates_and_small_parts_in_float32(nets, eight):
    half = tiny_nets(torch.bfloat16)
    assert half.weights_dtype == torch.bfloat16
    assert half.warp.dense_motion_network.grid.dtype == torch.float32
    assert {p.dtype for p in half.motion.parameters()} == {torch.float32}
    assert {p.dtype for p in half.stitch.parameters()} == {torch.float32}
    deformation, _ = half.warp.motion(eight["volume"].bfloat16(), eight["kp_source"], eight["kp_driving"])
    assert deformation.dtype == torch.float32
    arguments = [eight[name] for name in CALLS["warp"]]
    face, reference = half(*arguments), nets(*arguments)
    assert face.dtype == torch.bfloat16
    assert (face.float() - reference).norm() / reference.norm() < 4e-2


def test_saved_networks_come_back(nets, tmp_path):
    save_nets(nets, tmp_path, torch.float32)
    again = load_nets(tmp_path)
    assert again.config == TINY
    assert not again.training
    stored = again.state_dict()
    assert all(torch.equal(value, stored[key]) for key, value in nets.state_dict().items())
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        load_nets(tmp_path)


@pytest.mark.parametrize("config", [OFFICIAL, EMBEDDED, TINY])
def test_configs_survive_json(config):
    assert type(config).from_dict(config.to_dict()) == config


def test_official_sizes():
    assert (OFFICIAL.render_size, OFFICIAL.warp.hourglass_in, OFFICIAL.warp.hourglass_out) == (512, 110, 142)


def test_the_embedded_networks_are_small_and_can_be_trained():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        nets = DittoNets(EMBEDDED)
    count = sum(parameter.numel() for parameter in nets.parameters())
    assert count < 4_000_000  # 8 MB in fp16, of 15 for all of the embedded Ditto
    given = inputs(EMBEDDED, 1)
    with torch.enable_grad():
        volume = nets.appearance(given["image"])
        pose = nets.motion(given["image"])
        kp = pose.kp.unflatten(1, (EMBEDDED.motion.n_keypoints, 3))
        nets(volume, kp, nets.stitch(kp, kp + 0.1)).mean().backward()
    without = [name for name, p in nets.named_parameters() if p.grad is None]
    assert all(name.startswith("motion.detector.fc_") for name in without), without


@pytest.mark.parametrize(
    ("part", "name", "change", "message"),
    [
        ("appearance", "image", lambda x: x[..., :63], "divide by 4"),
        ("motion", "image", lambda x: x[:, :1], "divide by 32"),
        ("warp", "volume", lambda x: x[:, :3], r"feature volume must be \(batch, 4, 4, 16, 16\)"),
        ("warp", "kp_source", lambda x: x[:, :4], r"source key points must be \(batch, 5, 3\)"),
        ("warp", "kp_driving", lambda x: x[:4], "one of each for every frame"),
        ("decoder", "features", lambda x: x[0], r"features \(batch, 16, H, W\)"),
        ("stitch", "kp_driving", lambda x: x.flatten(1), "driving key points"),
    ],
)
def test_other_shapes_are_refused(nets, eight, part, name, change, message):
    with pytest.raises(ValueError, match=message):
        outputs(nets, part, {**eight, name: change(eight[name])})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"crop_size": 80}, "multiple of 32"),
        ({"crop_size": 128}, "warp.volume_size is 16, but appearance makes 32"),
        ({"decoder": {"in_channels": 8}}, "decoder.in_channels is 8, but warp makes 16"),
        ({"warp": {"mask_kernel": 4}}, "odd number"),
        ({"warp": {"volume_size": 15}}, "multiple of 4"),
        ({"motion": {"depths": [1, 1]}}, "4 dims"),
        ({"motion": {"dims": [8, 16, 0, 32]}}, "each positive"),
        ({"stitch": {"hidden_channels": []}}, "1 to 64 whole numbers"),
        ({"appearance": {"speed": 3}}, "does not know speed"),
        ({"appearance": {"n_res_blocks": True}}, "whole number"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    values = TINY.to_dict()
    for key, value in changes.items():
        values[key] = {**values[key], **value} if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=message):
        type(TINY).from_dict(values)
