"""Stage `motion`: the speech encoder, a mouth head that is thrown away, and the LMDM, from scratch and together.

The LMDM is trained in a reduced form of its motion vector (70 numbers: scale - 1, three angles in degrees, translation,
expression; each divided by its spread) and `export` folds the change of form into its first and last layer. An angle's 66
logits are linear in it (`space.logits`), so unit noise on them is noise of 1 / |b| on the angle: the same diffusion.
"""

import json
import math

import torch
import torch.nn.functional as F
from demo import nets as store
from demo.identity import const, sample_looks
from demo.train import Stage, load_from
from torch import Tensor, nn

from . import sound, space

FRAMES = sound.FRAMES
# smile, brow, blink, width of the eight emotions, in the order of condition.EMOTIONS
FACES = ((-0.55, -0.035, 0.12, -0.05), (-0.5, -0.02, 0.2, 0.1), (-0.2, 0.03, -0.2, 0.05), (1.0, 0.012, 0.08, 0.12),
         (0.0, 0.0, 0.0, 0.0), (-1.0, 0.02, 0.15, -0.05), (0.1, 0.05, -0.25, -0.05), (0.45, -0.01, 0.1, 0.0))
NEUTRAL = 4
PARAM_STD = (0.25, 0.15, 0.25, 0.4, 0.2, 0.3, 0.02)
HEAD_STD = (0.02, 1.8, 2.8, 1.5, 0.03, 0.02, 1.0)
"""Of scale, pitch, yaw, roll (degrees), t."""
ANCHOR = (0.0, space.DROP / 1.74, 0.0)
"""Where a head lies in its own crop."""
N_HEAD = 7
SPEAKING_TIMES = (999, 749, 499, 249)
LIPS, EYES = (6, 12, 14, 17, 19, 20), (11, 13, 15, 16, 18)


def spreads() -> Tensor:
    """Spread of every reduced column (70,); 1 for those that never change."""
    basis = torch.tensor(space.BASIS)
    exp = (basis * torch.tensor(PARAM_STD)[:, None]).square().sum(0).sqrt()
    return torch.cat([torch.tensor(HEAD_STD), torch.where(exp > 0, exp, torch.ones_like(exp))])


def noise_spreads() -> Tensor:
    """Standard deviation of unit noise on the vector, as it shows in each reduced and scaled column (70,)."""
    per_degree = space.bins("cpu").norm() / space.VARIANCE
    std = spreads()
    noise = 1 / std
    noise[1:4] = 1 / (per_degree * std[1:4])
    return noise


def column_weights() -> Tensor:
    weights = torch.zeros(70)
    weights[:6] = torch.tensor([0.5, 1.0, 1.0, 1.0, 1.0, 1.0])
    moving = torch.tensor(space.BASIS).abs().sum(0).unflatten(0, (21, 3)) > 0
    exp = torch.zeros(21, 3)
    exp[list(LIPS)], exp[list(EYES)] = 3.0, 0.7
    weights[N_HEAD:] = (exp * moving).flatten() + 0.05 * (~moving).flatten()
    return weights / weights.mean()


class MouthHead(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first, self.last = nn.Linear(width, 64), nn.Linear(64, 3)

    def forward(self, frames: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(frames)))


def smooth(x: Tensor, frames: int) -> Tensor:
    """Mean over `frames` (odd) frames of (n, T)."""
    half = frames // 2
    return F.avg_pool1d(F.pad(x[:, None], (half, half), mode="replicate"), frames, 1)[:, 0]


class Choreography:
    """Random head motion, blinks and emotions for the speech of a clip: what a presenter does, frames -1..79."""

    def __init__(self, device):
        self.device = device
        rows = store.pack_module("nodes.ditto.condition").emotion_row
        self.labels = torch.stack([rows([i]) for i in range(8)]).to(device)
        self.faces = torch.tensor(FACES, device=device)
        self.time = torch.arange(-1, FRAMES, device=device) / 25

    def _rand(self, *shape, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(*shape, device=self.device)

    def sway(self, n: int) -> Tensor:
        """(n, 81), smooth, spread about 1."""
        rate, phase = self._rand(n, 3, 1, low=0.06, high=0.45), self._rand(n, 3, 1, high=2 * math.pi)
        size = self._rand(n, 3, 1, low=0.3)
        waves = size * torch.sin(2 * math.pi * rate * self.time + phase)
        return 1.2 * waves.sum(1)

    def emotion(self, n: int) -> tuple[Tensor, Tensor]:
        """Condition rows (n, 8) and the four numbers of the face at every frame (n, 81, 4), which grow into it."""
        one, two = (torch.randint(8, (n,), device=self.device) for _ in range(2))
        calm = self._rand(n) < 0.5
        one = torch.where(calm, torch.full_like(one, NEUTRAL), one)
        mix = (self._rand(n, 1) * (self._rand(n, 1) < 0.15) * ~calm[:, None])
        row = (1 - mix) * self.labels[one] + mix * self.labels[two]
        face = (1 - mix) * self.faces[one] + mix * self.faces[two]
        kind = self._rand(n, 1)
        other = self.faces[torch.randint(8, (n,), device=self.device)]
        before = torch.where(kind < 0.45, face, torch.where(kind < 0.85, torch.zeros_like(face), other))
        fade = torch.exp(-(self.time + 0.04) / 0.35)[:, None]
        return row, face[:, None] + (before - face)[:, None] * fade

    def blinks(self, n: int) -> Tensor:
        period = self._rand(n, 1, low=1.8, high=5.0)
        shifted = (self.time + self._rand(n, 1, high=5.0)) % period
        return torch.exp(-(((shifted - 0.5 * period) / 0.085) ** 2))

    def __call__(self, mouth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mouths (n, 81, 3) -> head (n, 81, 7) as `space.head`, params (n, 81, 7), emotion rows (n, 8)."""
        n = len(mouth)
        opened = mouth[..., 0]
        beat = smooth(opened, 5) - smooth(opened, 31)
        active = 0.45 + 1.4 * smooth(opened, 31).clamp(max=0.5)
        lively = self._rand(n, 1, low=0.5, high=1.3)
        yaw = 3.6 * self.sway(n) * active * lively
        pitch = (1.7 * self.sway(n) * active - 4.0 * beat) * lively
        roll = 1.5 * self.sway(n) * active * lively - 0.12 * yaw
        row, face = self.emotion(n)
        smile, brow, lids, width = face.unbind(-1)
        blink = self.blinks(n)
        blink = blink + (1 - blink) * lids
        gaze = -0.10 * yaw
        brow = brow + 0.05 * beat * lively
        params = torch.stack([opened, mouth[..., 1] + width, mouth[..., 2], smile, blink, gaze, brow], -1)
        place = const(ANCHOR, self.device) + torch.cat([0.012 * torch.randn(n, 2, device=self.device), self._rand(n, 1, high=0.0)], 1)
        t_x, t_y = place[:, :1] + 0.010 * yaw, place[:, 1:2] - 0.008 * pitch + 0.012 * beat
        scale = (1 + 0.02 * torch.randn(n, 1, device=self.device)).expand_as(yaw)
        return torch.stack([pitch, yaw, roll, t_x, t_y, torch.zeros_like(yaw), scale], -1), params, row


class MotionStage(Stage):
    weight_decay = 0.03

    def __init__(self, args):
        super().__init__(args)
        encoder = store.pack_module("nodes.ditto.speech_encoder")
        lmdm = store.pack_module("nodes.ditto.lmdm")
        self.official = lmdm.EMBEDDED
        values = {**self.official.to_dict(), "motion_dim": N_HEAD + 63}
        self.speech = encoder.SpeechEncoder(encoder.SpeechEncoderConfig()).to(self.device)
        self.lmdm = lmdm.LMDM(lmdm.LMDMConfig.from_dict(values)).to(self.device)
        self.mouth_head = MouthHead(self.speech.config.width).to(self.device)
        nn.init.normal_(self.lmdm.null_cond_embed, std=0.02)
        nn.init.normal_(self.lmdm.null_cond_hidden, std=0.02)
        self.modules = {"speech": self.speech, "lmdm": self.lmdm, "mouth_head": self.mouth_head}
        load_from(args, self.modules)
        self.source = sound.MotionSound(args.speech, self.device)
        self.check = sound.check_clips(args.check, self.device) if args.check else []
        self.play = Choreography(self.device)
        schedule = store.pack_module("nodes.ditto.schedule")
        self.left = torch.tensor(schedule.alphas_cumprod(), dtype=torch.float32, device=self.device)
        self.std, self.noise = spreads().to(self.device), noise_spreads().to(self.device)
        self.squeeze = 1 / (1 + self.noise**2).sqrt()
        self.columns = column_weights().to(self.device)
        self.at_frames = torch.full((20,), 0.15, device=self.device)
        self.at_frames[6:16] = 1.0
        self.of_mouth = torch.tensor([2.0, 0.5, 0.7], device=self.device)
        self.times = torch.tensor(SPEAKING_TIMES, device=self.device)

    def groups(self):
        return [(self.lmdm.parameters(), 8e-4), ([*self.speech.parameters(), *self.mouth_head.parameters()], 1.2e-3)]

    def reduced(self, head: Tensor, params: Tensor) -> Tensor:
        """(..., 70), scaled."""
        parts = [head[..., 6:] - 1, head[..., :3], head[..., 3:6], space.expression(params)]
        return torch.cat(parts, -1) / self.std

    def condition(self, rows: Tensor, emotion: Tensor) -> Tensor:
        """Speech rows (n, 80, w) and what `condition.Condition` puts behind them; eyes are random: they are not followed."""
        n = len(rows)
        kp = space.keypoints(sample_looks(n, self.device)) + 0.01 * torch.randn(n, 63, device=self.device)
        eyes = torch.cat([1.2 * torch.rand(n, 2, device=self.device), 0.03 * torch.randn(n, 6, device=self.device)], 1)
        rest = torch.cat([emotion, eyes, kp], 1)
        return torch.cat([rows, rest[:, None].expand(-1, FRAMES, -1)], -1)

    def predict(self, lmdm, x: Tensor, frame: Tensor, cond: Tensor, time: Tensor, drop: Tensor) -> Tensor:
        """One pass of the LMDM without the second, unconditional one: x0 (n, 80, 70); drop (n,) leaves the condition out."""
        tokens = lmdm.cond_encoder(lmdm.cond_projection(cond))
        hidden = lmdm.non_attn_cond_projection(tokens.mean(1))
        tokens = torch.where(drop[:, None, None], lmdm.null_cond_embed.to(tokens.dtype), tokens)
        hidden = torch.where(drop[:, None], lmdm.null_cond_hidden.to(hidden.dtype), hidden)
        h = lmdm.time_mlp(time.float())
        vector = F.mish(lmdm.to_time_cond(h) + hidden)
        extra = lmdm.to_time_tokens(h).unflatten(-1, (2, -1))
        memory = lmdm.norm_cond(torch.cat((tokens, extra), 1))
        turned = lmdm.rotary(memory)
        y = lmdm.input_projection(torch.cat((x * self.squeeze, frame[:, None].expand(-1, FRAMES, -1)), -1))
        for layer in lmdm.seqTransDecoder.stack:
            y = layer(y, memory, turned, vector)
        return lmdm.final_layer(y)

    def loss(self):
        n = self.args.pieces
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            levels, mouth, at_frames = self.source.clips(n)
            head, params, emotion = self.play(mouth)
            motion = self.reduced(head, params)
            frame = self.reduced(head[:, 0], params[:, 0])
            wobble = torch.randn_like(frame) * self.frame_noise()
            frame, x0 = frame + wobble, motion[:, 1:]
            some = torch.rand(n, device=self.device) < 0.5
            time = torch.where(some, torch.randint(1000, (n,), device=self.device),
                               self.times[torch.randint(4, (n,), device=self.device)])
            a = self.left[time][:, None, None]
            x = a.sqrt() * x0 + (1 - a).sqrt() * self.noise * torch.randn_like(x0)
            drop = torch.rand(n, device=self.device) < 0.15
        frames = self.speech.encode(levels.flatten(0, 1)).unflatten(0, (n, sound.N_WINDOWS))
        guess = self.mouth_head(frames).float()
        head_loss = ((guess - at_frames).square() * self.of_mouth * self.at_frames[:, None]).mean()
        cond = self.condition(sound.rows_of(frames.float()), emotion)
        made = self.predict(self.lmdm, x, frame, cond, time, drop).float()
        off = made - x0
        value = (off.square() * self.columns).mean()
        speed = ((off[:, 1:] - off[:, :-1]).square() * self.columns).mean()
        with torch.no_grad():
            lips = off[:, :, N_HEAD:].unflatten(2, (21, 3))[:, :, 12, 1].square().mean()
        return {"loss": value + 0.5 * speed + 4 * head_loss, "value": value, "speed": speed, "head": head_loss, "lip": lips}

    def frame_noise(self) -> Tensor:
        raw = torch.cat([const((0.01, 0.4, 0.4, 0.4, 0.005, 0.005, 0.005), self.device), const((0.005,) * 63, self.device)])
        return raw / self.std

    @torch.no_grad()
    def note(self) -> str:
        """Correlation of opening on clean validation speech: mouth head, and the LMDM's first step."""
        copies, scores = self.averager.copies, {}
        lmdm, speech, mouth_head = copies["lmdm"], copies["speech"], copies["mouth_head"]
        for voice, windows, mouths in self.check:
            k = len(windows)
            frames = speech(windows.flatten(0, 1)).unflatten(0, (k, sound.N_WINDOWS))
            rows = sound.rows_of(frames)
            neutral = self.play.labels[NEUTRAL].expand(k, -1)
            cond = self.condition(rows, neutral)
            frame = torch.zeros(k, N_HEAD + 63, device=self.device)
            frame[:, 4:6] = const(ANCHOR[:2], self.device) / self.std[4:6]
            x = self.noise * torch.randn(k, FRAMES, N_HEAD + 63, device=self.device)
            never = torch.zeros(k, dtype=torch.bool, device=self.device)
            made = self.predict(lmdm, x, frame, cond, torch.full((k,), 999, device=self.device), never)
            lip = made[:, :, N_HEAD:].unflatten(2, (21, 3))[:, :, 12, 1]
            want = mouths[:, 1:, 0]
            guess = mouth_head(frames)[:, :, 6:16].unflatten(2, (5, 2)).mean(3).flatten(1, 2)[..., 0]
            scores[voice] = [round(float(torch.corrcoef(torch.stack([g.flatten(), want.flatten()]))[0, 1]), 3)
                             for g in (guess, lip)]
        return json.dumps(scores)
