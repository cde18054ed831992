"""The motion space of the drawn presenter: what key points, expression and pose ARE for a picture of it.

Ditto's key points are learned without names; the embedded engine's are defined. Key point k lies on a place of the face,
the expression moves it as the presenter's parameters move that place, and pose is the head's own. So truth is known for
every picture: the motion extractor is taught it, the warping network is given it, and the LMDM is trained on it without
a picture. Units: scene units (nose to chin = 1) divided by H0, which is half the side of the usual crop.

Parameters of an expression, (..., 7): open, width (0.5 at rest), round, smile, blink, gaze, brow.
"""

import math

import torch
from demo import presenter
from demo.identity import Look, const
from torch import Tensor

H0 = 1.75
DROP = 0.25
"""The crop's centre lies this far above the nose, in scene units."""
DEGREES = 3.4
"""Degrees of a unit of the presenter's yaw and pitch: then the middle of the face lies at the depth Z."""
Z = 0.035 / math.sin(math.radians(DEGREES)) / H0
N_BINS, FIRST, STEP = 66, -97.5, 3.0
VARIANCE = (N_BINS**2 - 1) / 12 * STEP**2
"""Of equally likely bins. An angle is written as a tilt of those: flat logits, so that unit noise on all 66 is 7 degrees of
noise. With narrow bins (logits of a width of 12 degrees) it was 0.3: the first of four sampling steps then fixed the head at
its mean, and it did not move (spread of yaw 0.1 degrees)."""
PARAMS = ("open", "width", "round", "smile", "blink", "gaze", "brow")
SMILE, MEAN_MOUTH = -0.07, 0.2875


def keypoints(look: Look) -> Tensor:
    """Canonical key points of faces, (B, 63). Lips 6 12 14 17 19 20 and eyes 11 13 15 16 18 as `nodes/ditto/drive.py`."""
    v = {k: look[k].reshape(-1) for k in ("face_w", "eye_x", "eye_y", "eye_h", "brow_y", "nose_y", "mouth_y", "mouth_w",
                                          "lip_u", "lip_l", "hair_line")}
    zero = torch.zeros_like(v["face_w"])
    eye, lid = v["eye_x"], v["eye_y"] - v["eye_h"]
    low = v["mouth_y"] + 0.7 * v["lip_l"]
    z = Z * H0
    points = [
        (zero, zero + 1.0, 0.2), (zero, v["hair_line"], 0.2), (-v["face_w"], zero - 0.1, 0.2),
        (v["face_w"], zero - 0.1, 0.2), (zero, v["nose_y"], 0.3), (-0.72 * v["face_w"], zero + 0.62, 0.2),
        (zero, v["mouth_y"] - v["lip_u"], 0), (0.72 * v["face_w"], zero + 0.62, 0.2), (-eye, v["brow_y"], 0),
        (eye, v["brow_y"], 0), (zero, zero - 1.3, 0.2), (-eye, v["eye_y"], 0), (zero, v["mouth_y"] + v["lip_l"], 0),
        (-eye, lid, 0), (-v["mouth_w"], v["mouth_y"], 0), (eye, v["eye_y"], 0), (eye, lid, 0),
        (v["mouth_w"], v["mouth_y"], 0), (zero, v["eye_y"], 0), (-0.5 * v["mouth_w"], low, 0), (0.5 * v["mouth_w"], low, 0),
    ]
    depth = [z * (1.5 if i == 4 else 0.6 if d else 1.0) for i, (_, _, d) in enumerate(points)]
    rows = [torch.stack([x, y, zero + d], -1) for (x, y, _), d in zip(points, depth, strict=True)]
    return torch.stack(rows, 1).flatten(1) / H0


def _basis() -> tuple[tuple[float, ...], ...]:
    """Effect of each parameter on the 63 numbers of an expression, in scene units."""
    basis = torch.zeros(len(PARAMS), 21, 3)
    corners, lower, lids = ((14, -1), (17, 1)), ((19, -1), (20, 1)), (13, 16, 18)
    basis[0, 6, 1], basis[0, 12, 1] = -0.30 * presenter.MOUTH_DROP, 0.70 * presenter.MOUTH_DROP
    for point, side in corners:
        basis[:3, point, 0] = side * MEAN_MOUTH * torch.tensor([0.04, 0.26, -0.30])
        basis[3, point, 1] = 0.7 * SMILE
    for point, side in lower:
        basis[0, point, 1] = 0.80 * 0.70 * presenter.MOUTH_DROP
        basis[:3, point, 0] = side * 0.5 * MEAN_MOUTH * torch.tensor([0.04, 0.26, -0.30])
    basis[2, [6, 12], 2] = 0.15  # rounded lips come forward
    basis[3, [6, 12], 1] = -0.3 * SMILE
    # A closed eye moves the lids back as well: seen by the warping network, and above the noise of the diffusion.
    basis[4, lids[:2], 1], basis[4, lids, 2] = 0.125, -2 * Z * H0
    basis[5, [11, 15], 0] = 0.03
    basis[6, 18, 1] = -1.0
    return tuple(tuple(float(v) for v in row) for row in (basis / H0).flatten(1))


BASIS = _basis()


def expression(params: Tensor) -> Tensor:
    """Parameters (..., 7) -> expression (..., 63); a resting face is 0."""
    rest = const((0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0), params.device)
    return (params - rest) @ const(BASIS, params.device)


def head(pose: Look, view: Tensor) -> Tensor:
    """Pose of heads in a crop: (B, 7) pitch, yaw, roll in degrees, t x and y, t z (0), scale. view (B, 5)."""
    flat = {k: v.reshape(-1) for k, v in pose.items()}
    centre = 0.5 * (view[:, :2] + view[:, 2:4])
    half, angle = 0.5 * (view[:, 2] - view[:, 0]), view[:, 4]
    dx, dy = flat["dx"] - centre[:, 0], flat["dy"] - centre[:, 1]
    cos, sin = angle.cos(), angle.sin()
    t = torch.stack([cos * dx + sin * dy, -sin * dx + cos * dy, torch.zeros_like(dx)], 1) / half[:, None]
    turned = torch.stack([flat["pitch"] * DEGREES, flat["yaw"] * DEGREES, (flat["roll"] - angle).rad2deg()], 1)
    return torch.cat([turned, t, ((1 + flat["zoom"]) * H0 / half)[:, None]], 1)


def head_pose(head_: Tensor, view: Tensor, params: Tensor) -> Look:
    """The presenter's pose of `head` and expression parameters: the way back, for drawing the truth of a motion."""
    centre = 0.5 * (view[:, :2] + view[:, 2:4])
    half, angle = 0.5 * (view[:, 2] - view[:, 0]), view[:, 4]
    x, y = head_[:, 3] * half, head_[:, 4] * half
    cos, sin = angle.cos(), angle.sin()
    flat = {
        "dx": centre[:, 0] + cos * x - sin * y, "dy": centre[:, 1] + sin * x + cos * y,
        "roll": head_[:, 2].deg2rad() + angle, "zoom": head_[:, 6] * half / H0 - 1,
        "yaw": head_[:, 1] / DEGREES, "pitch": head_[:, 0] / DEGREES,
        "blink": params[:, 4], "gaze": params[:, 5], "brow": params[:, 6],
    }
    return {k: v.reshape(-1, 1, 1, 1) for k, v in flat.items()}


def view_of(pose: Look, jitter: float = 0.0) -> Tensor:
    """The crop around heads, (B, 5), as `nodes/ditto/crop.py` places it by the 68 points of a face: measured on 27 drawn
    presenters, its side is 3.48 +- 0.06 scene units, its centre 0.25 above the nose, its angle that of the head + 0.7
    degrees. `jitter` 1 widens that to what other landmarks would give.
    """
    zoom = 1 + pose["zoom"].reshape(-1)
    n, device = len(zoom), zoom.device

    def unit() -> Tensor:
        return torch.rand(n, device=device) * 2 - 1

    zero = torch.zeros_like(pose["dx"])
    x, y = presenter.head_to_scene(zero, zero - DROP, pose)
    wide = (torch.rand(n, device=device) < 0.15).float() * jitter
    half = zoom * (1.74 + jitter * 0.07 * unit() + wide * (0.18 + 0.15 * unit()))
    x = x.reshape(-1) + jitter * 0.05 * unit()
    y = y.reshape(-1) + jitter * 0.08 * unit()
    angle = pose["roll"].reshape(-1) + math.radians(0.7) + jitter * 0.04 * unit()
    return torch.stack([x - half, y - half, x + half, y + half, angle], 1)


def with_smile(look: Look, smile: Tensor) -> Look:
    """The look with the corners of the mouth raised by `smile` (B,), 1 a smile, -1 the opposite."""
    return {**look, "corner": look["corner"] + SMILE * smile.reshape(-1, 1, 1, 1)}


def bins(device: torch.device | str) -> Tensor:
    return const(tuple(FIRST + STEP * i for i in range(N_BINS)), device)


def logits(degrees: Tensor) -> Tensor:
    """Angles (...) -> logits (..., 66), linear in the angle: sums and differences of logits are those of angles.

    `geometry.degrees_from_logits` gives the angle back to 1 % at 12 degrees, 5 % at 28.
    """
    return degrees[..., None] * bins(degrees.device) / VARIANCE


def angle_heads(linear: torch.nn.Linear) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of the three heads that give `logits` of what a layer (d -> 3, in tens of degrees) gives."""
    slope = bins("cpu").double() / VARIANCE
    rows = zip(linear.weight.detach().cpu().double(), linear.bias.detach().cpu().double(), strict=True)
    return [((10 * row[None] * slope[:, None]).float(), (10 * bias * slope).float()) for row, bias in rows]
