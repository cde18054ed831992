"""The synthetic presenter: head and shoulders drawn with anti-aliased distance functions, in torch.

Scene coordinates: origin at the nose of the neutral head, x right, y down, unit = nose to chin. A view maps the
picture onto a rectangle (x1, y1, x2, y2) of the scene, so the same code draws a face crop and the whole frame; a fifth
number turns the rectangle about its centre (radians). A pose may have a `pitch`, which lifts the features as `yaw` shifts them.
`mouth` is (B, 3): open, width, round as in `visemes`. Pictures are (B, 3, H, W) in 0..1.
"""

import torch
from torch import Tensor

from .identity import LUMA, MOUTH_DARK, Look, colour, const

MARGIN = 0.03  # the box reaches this far below the chin (MuseTalk's extra margin)
MOUTH_DROP = 0.25  # opening of a fully open mouth, in scene units


def neutral_pose(n: int, device: torch.device | str) -> Look:
    """Pose rows: dx, dy, roll (radians), zoom, yaw, blink, brow, gaze."""
    names = ("dx", "dy", "roll", "zoom", "yaw", "blink", "brow", "gaze")
    return {k: torch.zeros(n, 1, 1, 1, device=device) for k in names}


def sample_poses(n: int, device: torch.device | str, generator: torch.Generator | None = None) -> Look:
    """Random gentle poses; one in eight blinks."""

    def unit() -> Tensor:
        return torch.rand(n, 1, 1, 1, device=device, generator=generator) * 2 - 1

    pose = {"dx": 0.08 * unit(), "dy": 0.05 * unit(), "roll": 0.06 * unit(), "zoom": 0.03 * unit(), "yaw": unit()}
    shut = (unit().abs() > 0.875).float()
    pose["blink"] = shut * unit().abs() + (1 - shut) * 0.06 * unit().abs()
    pose["brow"], pose["gaze"] = 0.02 * unit(), unit()
    return pose


def head_to_scene(x: Tensor, y: Tensor, pose: Look) -> tuple[Tensor, Tensor]:
    """Points fixed to the head -> scene."""
    cos, sin, zoom = pose["roll"].cos(), pose["roll"].sin(), 1 + pose["zoom"]
    return pose["dx"] + zoom * (cos * x - sin * y), pose["dy"] + zoom * (sin * x + cos * y)


def face_box(look: Look, pose: Look) -> Tensor:
    """(B, 4) scene box x1, y1, x2, y2: nose at half height, chin at the bottom, cheeks at the sides."""
    zero = torch.zeros_like(pose["dx"])
    nose_x, nose_y = head_to_scene(zero + 0.02 * pose["yaw"], zero, pose)
    _, chin_y = head_to_scene(zero, zero + 1.0, pose)
    bottom = chin_y + MARGIN
    half = look["face_w"] * (1 + pose["zoom"]) * 1.0
    box = torch.cat([nose_x - half, 2 * nose_y - bottom, nose_x + half, bottom], dim=1)
    return box[:, :, 0, 0]


def _step(d: Tensor, soft: Tensor | float) -> Tensor:
    """Coverage of the inside (d < 0) of a distance field with an edge `soft` wide."""
    return (0.5 - d / soft).clamp(0, 1)


def _smooth(a: float, b: float, x: Tensor) -> Tensor:
    t = ((x - a) / (b - a)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def _blob(x: Tensor, y: Tensor, cx, cy, sx, sy) -> Tensor:
    return torch.exp(-(((x - cx) / sx) ** 2 + ((y - cy) / sy) ** 2))


def _over(picture: Tensor, colour: Tensor, alpha: Tensor) -> Tensor:
    return picture + (colour - picture) * alpha


def _egg(x: Tensor, y: Tensor, look: Look, grow: Tensor | float = 0.0) -> Tensor:
    """About the distance to the outline of the head; negative inside."""
    p = look["face_p"]
    low = _smooth(-0.1, 1.05, y)
    width = look["face_w"] * (1 - look["jaw"] * low * low) + grow
    height = torch.where(y < -0.1, look["skull"] - 0.1 + grow, 1.1 + grow)
    radius = (x.abs() / width + 1e-4) ** p + ((y + 0.1).abs() / height + 1e-4) ** p
    return (radius ** (1 / p) - 1) * 0.9


def mouth_shape(look: Look, mouth: Tensor) -> Look:
    """Sizes of the mouth for `mouth` (B, 3): half width, gaps above and below the lip line, fullness."""
    opened, width, rounded = (mouth[:, i, None, None, None] for i in range(3))
    half = look["mouth_w"] * (1 + 0.26 * (width - 0.5) - 0.30 * rounded + 0.04 * opened)
    gap = MOUTH_DROP * opened
    # a rounded mouth is rounder and its lips are thicker in the middle
    return {"half": half, "inner": half * (0.90 - 0.16 * rounded), "up": 0.30 * gap, "down": 0.70 * gap,
            "power": 0.75 + 0.25 * rounded, "full": 1 + 0.22 * rounded - 0.14 * (width - 0.5),
            "opened": opened, "rounded": rounded}


def _lip_edges(x: Tensor, look: Look, m: Look) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y of outer upper, inner upper, inner lower and outer lower lip edge above each x."""
    across = (1 - (x / m["half"]) ** 2).clamp(min=0)
    inside = (1 - (x / m["inner"]) ** 2).clamp(min=0) ** m["power"]
    line = look["mouth_y"] + look["corner"] * ((x / m["half"]) ** 2 - 0.3)
    bow = 1 - look["bow"] * 0.35 * torch.exp(-((x / (0.17 * m["half"])) ** 2))
    upper = line - m["up"] * inside
    lower = line + m["down"] * inside
    return (upper - look["lip_u"] * m["full"] * across ** 0.62 * bow, upper, lower,
            lower + look["lip_l"] * m["full"] * across ** 0.55)


def _draw_mouth(picture: Tensor, x: Tensor, y: Tensor, look: Look, mouth: Tensor, soft: Tensor):
    m = mouth_shape(look, mouth)
    top, upper, lower, bottom = _lip_edges(x, look, m)
    side = _step(x.abs() - m["half"], 2 * soft)
    shade = _blob(x, y, 0, bottom + 0.055, 0.8 * m["half"], 0.045)
    picture = picture * (1 - 0.13 * shade)
    lips = _step(torch.maximum(top - y, y - bottom), 1.3 * soft) * side
    up_tone = look["lip"] * 0.86
    down_tone = look["lip"] * (1 + look["gloss"] * _blob(x, y, 0, 0.5 * (lower + bottom), 0.5 * m["half"], 0.03))
    tone = _over(up_tone, down_tone, _smooth(-0.02, 0.02, y - 0.5 * (upper + lower)))
    picture = _over(picture, tone, lips)
    seam = torch.exp(-(((y - 0.5 * (upper + lower)) / 0.013) ** 2)) * side * (1 - _smooth(0.0, 0.12, m["opened"]))
    picture = _over(picture, look["lip"] * 0.55, 0.8 * seam * _step(x.abs() - 0.93 * m["half"], 2 * soft))
    gap = lower - upper
    inside = _step(torch.maximum(upper - y, y - lower), soft) * _step(x.abs() - m["inner"], soft)
    inside = inside * _smooth(0.0, 0.012, gap)
    dark = colour(MOUTH_DARK, x.device)
    tongue = _blob(x, y, 0, lower + 0.03, 0.62 * m["inner"], 0.10 * m["opened"] + 0.02) * m["opened"]
    cavity = dark + colour((0.12, 0.04, 0.045), x.device) * tongue
    tooth = look["teeth"] * colour((1.0, 0.97, 0.90), x.device)
    tooth = tooth * (1 - 0.35 * (x / m["inner"]).abs().clamp(max=1) ** 2)
    depth = (0.34 * gap).clamp(max=0.06)
    row = _step(y - (upper + depth), 1.5 * soft) * (1 - 0.6 * m["rounded"]) * _smooth(0.02, 0.07, gap)
    row = row * _step(x.abs() - 0.86 * m["inner"], 3 * soft)
    return _over(picture, _over(cavity, tooth, row), inside), inside


def _draw_eyes(picture: Tensor, x: Tensor, y: Tensor, look: Look, pose: Look, soft: Tensor) -> Tensor:
    ax = x.abs() - look["eye_x"]  # mirrored: positive towards the temple
    yy = y - look["eye_y"] + look["eye_tilt"] * ax
    half, high = look["eye_w"], look["eye_h"]
    bow = (1 - (ax / half) ** 2).clamp(min=0)
    lid = -high * bow ** 0.8 * (1 - 1.75 * pose["blink"])
    low = 0.62 * high * bow
    socket = _blob(ax, yy, 0, -0.02, 1.25 * half, 2.1 * high)
    picture = picture * (1 - 0.16 * socket)
    crease = torch.exp(-(((yy + high * 1.45 * bow ** 0.7 + 0.004) / 0.014) ** 2)) * _step(ax.abs() - half, 0.08)
    picture = picture * (1 - 0.22 * crease * bow.clamp(max=1))
    white = _step(torch.maximum(lid - yy, yy - low), soft) * _step(ax.abs() - half, soft)
    ball = 0.90 - 0.20 * (ax / half) ** 2 - 0.25 * _smooth(0.02, -0.06, yy - lid.clamp(max=0) - 0.03)
    picture = _over(picture, ball * colour((1.0, 0.985, 0.97), x.device), white)
    gx = (ax - 0.012 * torch.sign(x) * pose["gaze"]) / (0.93 * high)
    gy = (yy + 0.10 * high) / (0.93 * high)
    r = (gx**2 + gy**2 + 1e-6).sqrt()
    tone = look["iris"] * (0.65 + 0.75 * (r * gy.clamp(min=-0.4) + 0.4)).clamp(0.5, 1.5)
    tone = tone * (1 - 0.55 * _smooth(0.78, 0.98, r))
    iris_soft = soft / (0.93 * high)
    picture = _over(picture, tone, _step(r - 1, iris_soft) * white)
    picture = _over(picture, 0.04 + 0 * tone, _step(r - 0.42, iris_soft) * white)
    glint = _blob(ax, yy, -0.018 * torch.sign(x), -0.4 * high, 0.016, 0.016) * white
    picture = _over(picture, 0.97 + 0 * tone, 0.85 * glint.clamp(max=1))
    lash = torch.exp(-(((yy - lid) / (0.012 + 0.010 * look["lashes"])) ** 2)) * _step(ax.abs() - 1.04 * half, 2 * soft)
    picture = _over(picture, look["brow"] * 0.45, 0.85 * lash)
    under = torch.exp(-(((yy - low - 0.01) / 0.012) ** 2)) * _step(ax.abs() - 0.9 * half, 0.06)
    picture = picture * (1 - 0.14 * under)
    arch = look["brow_y"] - pose["brow"] - look["brow_arch"] * (1 - ((ax - 0.05) / 0.24) ** 2).clamp(min=0) + 0.03 * ax
    thick = look["brow_t"] * (1 - 0.65 * _smooth(-0.05, 0.26, ax))
    brow = _step((y - arch).abs() - thick, 0.03) * _step((ax - 0.02).abs() - 0.22, 0.06)
    return _over(picture, look["brow"], 0.85 * brow)


def _draw_nose(picture: Tensor, x: Tensor, y: Tensor, look: Look, soft: Tensor) -> Tensor:
    tip, wide = look["nose_y"], look["nose_w"]
    lit = torch.sign(look["light"])
    bridge = _blob(x, y, 0, -0.12, 0.045, 0.30) + 0.8 * _blob(x, y, 0.01 * lit, tip - 0.03, 0.055, 0.05)
    flank = _blob(x.abs(), y, 0.095, -0.05, 0.045, 0.26) + 0.9 * _blob(x.abs(), y, wide, tip + 0.005, 0.03, 0.05)
    under = _blob(x, y, 0, tip + 0.062, 0.75 * wide, 0.022)
    picture = picture * (1 + 0.10 * bridge - 0.10 * flank - 0.20 * under)
    nostril = _blob(x.abs(), y, 0.48 * wide, tip + 0.045, 0.030, 0.017)
    return _over(picture, look["skin"] * 0.32, 0.75 * nostril.clamp(max=1))


def _skin(x: Tensor, y: Tensor, look: Look, d: Tensor, mouth: Tensor) -> Tensor:
    """Shaded face without features."""
    m = mouth_shape(look, mouth)
    light = 1 + look["light"] * x / look["face_w"] - 0.05 * y + 0.06 * _blob(x, y, 0, -0.75, 0.55, 0.35)
    light = light - 0.20 * _smooth(-0.16, 0.0, d) - 0.05 * _blob(x.abs(), y, 0.62, 0.35, 0.2, 0.5)
    light = light + 0.05 * _blob(x.abs(), y, 0.42, 0.10, 0.2, 0.18) + 0.05 * _blob(x, y, 0, 0.83, 0.16, 0.10)
    fold_x = 0.15 + 0.55 * (y - 0.12) + 0.05 * (m["half"] / look["mouth_w"] - 1)
    fold = torch.exp(-(((x.abs() - fold_x) / 0.028) ** 2)) * _smooth(0.14, 0.24, y) * (1 - _smooth(0.36, 0.50, y))
    light = light - 0.055 * fold - 0.03 * _blob(x, y, 0, 0.5 * (look["nose_y"] + look["mouth_y"]) + 0.03, 0.03, 0.06)
    picture = look["skin"] * light
    rose = colour((0.5, -0.6, -0.4), x.device)
    picture = picture + rose * look["blush"] * look["skin"][:, :1] ** 2 * _blob(x.abs(), y, 0.45, 0.20, 0.20, 0.15)
    beard = _smooth(0.18, 0.42, y + 0.25 * x.abs()) * (1 - 0.6 * _blob(x, y, 0, 0.28, 0.1, 0.08))
    return _over(picture, 0.5 * look["hair"] + 0.18, look["stubble"] * beard)


def _backdrop(x: Tensor, y: Tensor, look: Look) -> Tensor:
    fade = _smooth(-2.2, 2.4, y + 0.3 * x)
    picture = _over(look["back_a"] + 0 * x, look["back_b"], fade)
    picture = picture * (1 + 0.10 * _blob(x, y, 0.4 - 8 * look["light"], -0.8, 1.3, 1.2))
    return picture * (1 - look["vignette"] * ((x / 2.6) ** 2 + ((y - 0.1) / 2.6) ** 2).clamp(max=1.5))


def _draw_body(picture: Tensor, x: Tensor, y: Tensor, look: Look, soft: Tensor) -> Tensor:
    slope = look["shoulder"] + 0.11 * x**2 + 0.12 * _smooth(1.25, 2.0, x.abs()) * (x.abs() - 1.2)
    trap = 0.26 * torch.exp(-((x.abs() / 0.62) ** 2))
    cover = _step(slope - trap - y, 2 * soft)
    shade = 1 - 0.22 * _smooth(0.5, 2.2, x.abs()) - 0.10 * _blob(x, y, 0, 2.2, 0.5, 0.5)
    shade = shade + 0.05 * _blob(x.abs(), y, 1.05, slope + 0.15, 0.4, 0.25)
    picture = _over(picture, look["cloth"] * shade, cover)
    v_half = 0.50 - 0.42 * _smooth(0.9, 2.7, y)
    shirt = _step(x.abs() - v_half, 2 * soft) * _step(1.22 - y, 2 * soft) * look["suit"]
    fold = 1 - 0.15 * torch.exp(-(((x.abs() - v_half) / 0.05) ** 2))
    picture = _over(picture, look["shirt"] * fold, shirt * cover)
    lapel = torch.exp(-(((x.abs() - v_half - 0.16 - 0.10 * torch.sin(2.2 * (y - 1.4))) / 0.02) ** 2))
    return picture * (1 - 0.35 * lapel * cover * look["suit"] * _smooth(1.45, 1.6, y))


def _draw_neck(picture: Tensor, x: Tensor, y: Tensor, look: Look, soft: Tensor, chin: Tensor) -> Tensor:
    width = look["neck_w"] + 0.10 * _smooth(0.9, 1.6, y) ** 2
    bottom = look["shoulder"] + 0.02 + 0.10 * look["suit"] - 0.55 * (x / 0.6) ** 2 * (1 - 0.4 * look["suit"])
    cover = _step(x.abs() - width, 2 * soft) * _step(y - bottom, 2 * soft) * _step(0.3 - y, 0.1)
    shade = 0.86 - 0.30 * torch.exp(-((y - chin).clamp(min=0) / 0.17)) - 0.10 * (x / width) ** 2
    collar = torch.exp(-(((y - bottom) / 0.03) ** 2)) * _step(x.abs() - width, 2 * soft)
    picture = _over(picture, look["skin"] * (shade + 0.5 * look["light"] * x), cover)
    return picture * (1 - 0.25 * collar)


def _draw_hair(picture: Tensor, x: Tensor, y: Tensor, look: Look, soft: Tensor) -> Tensor:
    cap = _egg(x, y, look, look["hair_side"] + (look["hair_top"] - look["hair_side"]) * _smooth(-0.5, -1.3, y))
    # the face looks out of the hair through an oval, higher on the side of the parting
    lean = x / (0.93 * look["face_w"])
    top = look["hair_line"] - 0.16 * look["part"] * x / look["face_w"]
    oval = (lean.abs() + 1e-4) ** 2.4 + ((y - 0.05).clamp(max=0) / (top - 0.05)).abs().clamp(min=1e-4) ** 2.4
    wisp = 0.02 * torch.sin(23 * x + 9 * look["part"]) * (1 - look["long"])
    opening = (oval ** (1 / 2.4) - 1) * 0.8 + wisp
    cover = _step(cap, 2 * soft) * _step(-opening, 0.03 + 2 * soft) * (1 - look["bald"])
    cover = cover * (1 - _smooth(-0.24, 0.0, y) * (1 - 0.5 * look["long"]))
    angle = torch.atan2(x - 0.6 * look["part"], -(y + 0.2))
    flow = angle + 0.06 * torch.sin(4 * y + 9 * angle)
    strand = 1 + 0.045 * torch.sin(41 * flow + 3 * y) + 0.035 * torch.sin(87 * flow - 5 * y) * _smooth(0.02, 0.01, soft)
    gloss = 1 + 0.20 * _blob(angle, y, 0.25, -1.02, 0.6, 0.2) - 0.25 * _smooth(-0.12, 0.02, cap)
    return _over(picture, look["hair"] * strand * gloss, cover)


def _draw_back_hair(picture: Tensor, x: Tensor, y: Tensor, look: Look, soft: Tensor) -> Tensor:
    width = look["face_w"] + 0.20 + 0.10 * torch.sin(2.0 * (y + 0.3)) + 0.06 * _smooth(0.2, 1.3, y)
    d = torch.maximum(x.abs() - width, y - 1.55 + 0.25 * x**2)
    d = torch.maximum(d, -(y + 0.5))
    crown = _egg(x, y, look, look["hair_side"] + 0.1)
    cover = _step(torch.minimum(d, crown), 3 * soft) * look["long"]
    strand = 0.82 + 0.05 * torch.sin(31 * x + 3 * torch.sin(2 * y)) - 0.22 * _smooth(0.3, -0.35, x.abs() - look["face_w"])
    return _over(picture, look["hair"] * strand, cover)


def _draw_glasses(picture: Tensor, x: Tensor, y: Tensor, look: Look, soft: Tensor) -> Tensor:
    ax, ay = x.abs() - look["eye_x"], y - look["eye_y"] - 0.02
    ring = ((ax / 0.225).abs() ** 3.2 + (ay / 0.165).abs() ** 3.2 + 1e-5) ** (1 / 3.2)
    rim = _step((ring - 1).abs() * 0.19 - 0.011, soft)
    bridge = _step((ay + 0.05 + 0.3 * x**2).abs() - 0.010, soft) * _step(x.abs() - (look["eye_x"] - 0.22), soft)
    arm = _step((ay + 0.07).abs() - 0.012, soft) * _step(0.225 + look["eye_x"] - x.abs(), soft)
    frame = torch.maximum(torch.maximum(rim, bridge), arm * _step(x.abs() - look["face_w"], soft)) * look["glasses"]
    return _over(picture, 0.10 + 0.25 * look["cloth"], 0.92 * frame)


def grid(view: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scene x, y of every pixel centre of the view (B, 4) and the pixel's size, each (B, 1, ...)."""
    cols = (torch.arange(width, device=view.device, dtype=torch.float32) + 0.5) / width
    rows = (torch.arange(height, device=view.device, dtype=torch.float32) + 0.5) / height
    x1, y1, x2, y2 = (view[:, i, None, None, None] for i in range(4))
    if view.shape[1] == 5:
        u, v = (x2 - x1) * (cols[None, None, None, :] - 0.5), (y2 - y1) * (rows[None, None, :, None] - 0.5)
        cos, sin = view[:, 4, None, None, None].cos(), view[:, 4, None, None, None].sin()
        x, y = 0.5 * (x1 + x2) + cos * u - sin * v, 0.5 * (y1 + y2) + sin * u + cos * v
        return x, y, 0.5 * ((x2 - x1) / width + (y2 - y1) / height)
    x = x1 + (x2 - x1) * cols[None, None, None, :]
    y = y1 + (y2 - y1) * rows[None, None, :, None]
    return x.expand(-1, -1, height, -1), y.expand(-1, -1, -1, width), 0.5 * ((x2 - x1) / width + (y2 - y1) / height)


def render(look: Look, pose: Look, mouth: Tensor, view: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Draw a batch.

    Args:
        look, pose: rows of `sample_looks` and `sample_poses`.
        mouth: (B, 3) open, width, round.
        view: (B, 4 or 5) rectangle of the scene to show.

    Returns:
        pictures (B, 3, height, width) in 0..1 and the coverage of the mouth's inside (B, 1, height, width).
    """
    sx, sy, soft = grid(view, height, width)
    zoom = 1 + pose["zoom"]
    cos, sin = pose["roll"].cos() / zoom, pose["roll"].sin() / zoom
    hx = cos * (sx - pose["dx"]) + sin * (sy - pose["dy"])
    hy = -sin * (sx - pose["dx"]) + cos * (sy - pose["dy"])
    fx = hx - 0.035 * pose["yaw"] * (1 - (hx / 0.9).abs().clamp(max=1) ** 2)
    picture = _backdrop(sx, sy, look)
    picture = _draw_back_hair(picture, hx, hy, look, soft)
    picture = _draw_body(picture, sx, sy, look, soft)
    picture = _draw_neck(picture, 0.5 * (sx + hx), sy, look, soft, 0.95 + pose["dy"])
    ear = (((hx.abs() - look["face_w"] * 0.985) / look["ear"]) ** 2 + ((hy + 0.08) / 0.19) ** 2 + 1e-5).sqrt() - 1
    tone = look["skin"] * (0.86 - 0.25 * _smooth(-0.9, -0.2, ear))
    picture = _over(picture, tone, _step(0.1 * ear, 2 * soft) * (1 - 0.9 * look["long"]))
    fy = hy
    if "pitch" in pose:
        fy = hy + 0.035 * pose["pitch"] * (1 - (hy / 1.1).abs().clamp(max=1) ** 2)
    d = _egg(hx, hy, look)
    face = _skin(fx, fy, look, d, mouth)
    face = _draw_nose(face, fx - 0.02 * pose["yaw"], fy, look, soft)
    face = _draw_eyes(face, fx, fy, look, pose, soft)
    face, inside = _draw_mouth(face, fx, fy, look, mouth, soft)
    head = _step(d, 1.5 * soft)
    picture = _over(picture, face, head)
    picture = _draw_hair(picture, hx, hy, look, soft)
    picture = _draw_glasses(picture, fx, fy, look, soft)
    return picture.clamp(0, 1), inside * head


def luma(picture: Tensor) -> Tensor:
    """(B, 3, ...) -> (B, ...)."""
    weights = const(LUMA, picture.device).to(picture.dtype)
    return torch.einsum("c,bc...->b...", weights, picture)
