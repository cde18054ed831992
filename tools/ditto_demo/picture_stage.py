"""Stage `picture`: appearance, motion extractor, warp, decoder and stitching together, on pairs of one face.

The motion extractor is taught the truth (`space`); the others are taught to turn one picture into the other. Key points
are, for one half of a batch, true ones with noise, for the other the extractor's own on the source moved by the true
difference: that is what `KeypointDriver` gives at inference.
"""

import torch
import torch.nn.functional as F
from demo import nets as store
from demo.train import Averager, Stage, load_from
from torch import Tensor, nn

from . import pictures, space
from .sound import curve_bank


class BufferAverager(Averager):
    """Averages weights and takes over the running statistics of batch norms."""

    def __init__(self, modules, decay):
        super().__init__(modules, decay)
        self.pairs = [(own, live) for k, m in modules.items()
                      for own, live in zip(self.copies[k].buffers(), m.buffers(), strict=True)]

    @torch.no_grad()
    def update(self) -> None:
        super().update()
        for own, live in self.pairs:
            own.copy_(live)


def new_nets():
    """Fresh image networks of the embedded size, and the layer that stands for the three angle heads."""
    config = store.pack_module("nodes.ditto.config").EMBEDDED
    nets = store.pack_module("nodes.ditto.networks").DittoNets(config)
    last = nets.stitch.mlp[-1]
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    for module in nets.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
            module.momentum = 0.03
    detector = nets.motion.detector
    for name in ("pitch", "yaw", "roll"):
        getattr(detector, f"fc_{name}").requires_grad_(False)
    nn.init.ones_(detector.fc_scale.bias)
    angles = nn.Linear(config.motion.dims[-1], 3)
    return nets, angles


def pose_of(head: Tensor, exp: Tensor, kp: Tensor):
    """MotionOutput of angles in degrees."""
    output = store.pack_module("nodes.ditto.motion").MotionOutput
    return output(head[:, 0], head[:, 1], head[:, 2], head[:, 3:6], exp, head[:, 6:7], kp)


class PictureStage(Stage):
    ema = 0.995

    def __init__(self, args):
        super().__init__(args)
        nets, angles = new_nets()
        self.nets, self.angles = nets.to(self.device), angles.to(self.device)
        self.modules = {"nets": self.nets, "angles": self.angles}
        load_from(args, self.modules)
        self.posed = store.pack_module("nodes.ditto.geometry").transform_keypoints
        curves = curve_bank(args.speech, self.device)
        self.pool = pictures.Pool(args.faces, nets.config.crop_size, self.device, curves)
        self.size = nets.config.render_size
        self.nets.train()
        if args.keep_norms:
            for module in self.nets.modules():
                if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
                    module.eval()

    def start(self) -> None:
        super().start()
        self.averager = BufferAverager(self.modules, self.ema)

    def groups(self):
        seeing = [*self.nets.motion.parameters(), *self.angles.parameters()]
        known = {id(p) for p in seeing}
        return [([p for p in self.nets.parameters() if id(p) not in known], 1.5e-3), (seeing, 1e-3)]

    def look_at(self, picture: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the motion extractor says: head (B, 7), expression and key points (B, 63)."""
        detector = self.nets.motion.detector
        hidden = detector(picture)
        with torch.autocast(self.device.type, enabled=False):
            hidden = hidden.float()
            head = torch.cat([10 * self.angles(hidden), detector.fc_t(hidden), detector.fc_scale(hidden)], 1)
            return head, detector.fc_exp(hidden), detector.fc_kp(hidden)

    def motion_loss(self, seen, truth_head, truth_exp, truth_kp) -> tuple[Tensor, Tensor]:
        head, exp, kp = seen
        scale = torch.cat([head.new_ones(3) * 0.04, head.new_ones(4)])
        off = (head - truth_head) * scale
        loss = F.smooth_l1_loss(off, torch.zeros_like(off), beta=0.02) + F.smooth_l1_loss(kp, truth_kp, beta=0.02)
        return loss + 3 * F.smooth_l1_loss(exp, truth_exp, beta=0.02), (head - truth_head)[:, :3].abs().mean()

    def key_points(self, source, driving, kp, exp_s, exp_d, seen):
        """Source and driving key points (B, 21, 3), before stitching."""
        n = len(kp)
        noise = [torch.randn_like(v) for v in (source["head"], exp_s, kp)]
        spread = torch.cat([kp.new_ones(3) * 0.4, kp.new_ones(3) * 0.006, kp.new_ones(1) * 0.01])
        head, exp = source["head"] + noise[0] * spread, exp_s + 0.004 * noise[1]
        points = kp + 0.008 * noise[2]
        own = (torch.arange(n, device=kp.device) % 2 == 0)[:, None] & (self.seen_share > 0)
        head, exp, points = (torch.where(own, s.detach(), v) for s, v in zip(seen, (head, exp, points), strict=True))
        moved = head + driving["head"] - source["head"]
        scale = torch.where(torch.rand(n, 1, device=kp.device) < 0.5, head[:, 6:], moved[:, 6:])
        moved = torch.cat([moved[:, :6], scale], 1)
        return self.posed(pose_of(head, exp, points)), self.posed(pose_of(moved, exp + exp_d - exp_s, points))

    def set_rate(self, progress: float, step: int) -> None:
        super().set_rate(progress, step)
        if not hasattr(self, "seen_share"):
            self.seen_share = torch.zeros((), device=self.device)
        self.seen_share.fill_(float(step > self.args.own_from))

    def loss(self):
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            source, driving, kp, edge = self.pool.pairs(self.args.batch)
            exp_s, exp_d = space.expression(source["params"]), space.expression(driving["params"])
            bare = self.posed(pose_of(driving["head"], torch.zeros_like(exp_d), kp))
            weight = pictures.weight_map(bare, self.size)
            place = pictures.mouth_place(bare)
        seen = self.look_at(torch.cat([source["picture"], driving["picture"]]))
        truth = [torch.cat(v) for v in ((source["head"], driving["head"]), (exp_s, exp_d), (kp, kp))]
        motion, degrees = self.motion_loss(seen, *truth)
        with torch.autocast(self.device.type, enabled=False):
            first = [v[: self.args.batch] for v in seen]
            kp_s, kp_d = self.key_points(source, driving, kp, exp_s, exp_d, first)
            stitched = self.nets.stitch(kp_s, kp_d)
        volume = self.nets.appearance(source["picture"])
        made = self.nets.decoder(self.nets.warp(volume, kp_s, stitched)).float()
        shown = pictures.picture_loss(made, driving["picture"], weight)
        gap = pictures.soft_opening(made, edge, place) - pictures.soft_opening(driving["picture"], edge, place)
        opening = gap.abs().mean() + 6 * gap.square().mean()
        loss = 3 * shown + 3 * opening + 10 * motion + 0.1 * (stitched - kp_d).square().mean()
        return {"loss": loss, "picture": shown, "opening": opening, "motion": motion, "degrees": degrees,
                "psnr": -10 * torch.log10((made - driving["picture"]).square().mean())}
