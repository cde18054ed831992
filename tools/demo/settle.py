"""A short last stage that runs on a CPU: the mouth learns to close as soon as the sound stops.

The long stages had labels that stayed open after the last sound of a phrase (see `visemes.shut_in_silence`). Here the
network learns from itself: where the corrected label is shut, its target is what it draws for deep silence; elsewhere
its target is what it drew before. No picture is decoded, so a step costs seconds on one core.
"""

import argparse
import copy
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import nets as store
from . import presenter, visemes
from .corpus import AudioSource
from .evaluate import draw_frames
from .identity import sample_looks
from .pictures import weight_map
from .train import HEAD_WEIGHT


def mix(first: Path, second: Path, share: float) -> dict[str, Tensor]:
    """Weights between two checkpoints of one run."""
    from safetensors.torch import load_file

    a, b = load_file(str(first)), load_file(str(second))
    return {k: a[k].float() * (1 - share) + b[k].float() * share for k in a}


@torch.no_grad()
def face_latents(nets, n: int) -> Tensor:
    look = sample_looks(n, "cpu")
    pose = presenter.sample_poses(n, "cpu")
    out = []
    for i in range(n):
        one = {k: v[i : i + 1] for k, v in look.items()}
        at = {k: v[i : i + 1] for k, v in pose.items()}
        mouth = torch.tensor([visemes.REST]) if i % 3 else torch.rand(1, 3)
        crop = draw_frames(one, at, mouth, presenter.face_box(one, at), nets.config.crop_size)
        out.append(nets.encode_crops(crop))
    return torch.cat(out)


class Settler:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.nets = store.new_nets()
        config = self.nets.config
        self.head = store.MouthHead(config.n_states, config.whisper.d_model, config.window_rows)
        state = mix(*args.checkpoints, args.share)
        for name, module in (("whisper", self.nets.whisper), ("unet", self.nets.unet), ("vae", self.nets.vae), ("head", self.head)):
            module.load_state_dict({k.removeprefix(name + "."): v for k, v in state.items() if k.startswith(name + ".")})
        self.nets.vae.requires_grad_(False)
        self.teacher = copy.deepcopy(self.nets).requires_grad_(False)
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        weights = {"joe": 1.0, "espeak": 0.15, "blend": 1.0}
        self.source = AudioSource(Path(args.speech), "cpu", shards=Path(args.shards), weights=weights)
        self.faces = face_latents(self.nets, 40)
        self.left = 2 * config.window_left
        whisper = store.pack_module("nodes.musetalk.whisper")
        self.places = whisper.positional_encoding(config.n_tokens, config.whisper.d_model)
        weight = weight_map(config.crop_size, "cpu", upper=0.25, lips=6.0)
        self.cells = F.avg_pool2d(weight, config.crop_size // config.latent_size)
        self.head_weight = torch.tensor(HEAD_WEIGHT)
        params = [*self.nets.whisper.parameters(), *self.head.parameters(), *self.nets.unet.parameters()]
        self.params = [p for p in params if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.params, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.0)

    def pick(self, curve: Tensor, rows: Tensor, teacher_open: Tensor) -> Tensor:
        """First rows of windows: half where the label is shut but the teacher is not, or just fell shut; half anywhere."""
        want = curve[0, self.left : self.left + len(teacher_open), 0]
        wrong = (want < 0.004) * (teacher_open.clamp(0, 1) + 0.02) * rows[0, self.left : self.left + len(want)]
        half = self.args.frames // 2
        first = torch.multinomial(wrong + 1e-6, half, replacement=True)
        return torch.cat([first, torch.randint(len(want), (half,))])

    def step(self) -> dict[str, float]:
        with torch.no_grad():
            mel, curve, rows = self.source.draw(1)
            before = self.teacher.whisper(mel) * rows[..., None, None]
            teacher_open = self.teacher_head(before)[0, :, 0]
            first = self.pick(curve, rows, teacher_open)
            index = first[:, None] + torch.arange(self.nets.config.window_rows)
            face = self.faces[torch.randint(len(self.faces), (len(first),))]
            shut = (curve[0, first + self.left, 0] < 0.004)
            old = before[0, index].flatten(1, 2)
            # deep silence: windows the teacher itself finds most shut among the label's shut ones, else nothing heard
            calm = torch.where(shut[:, None, None], self.silence(mel).expand_as(old), old)
            target = self.teacher.unet(face, calm + self.places)
        states = self.nets.whisper(mel) * rows[..., None, None]
        guess = self.head(states)
        want = curve[:, self.left : self.left + guess.shape[1]]
        heard = rows[:, self.left : self.left + guess.shape[1], None]
        head = ((guess - want).square() * self.head_weight * heard).mean()
        made = self.nets.unet(face, states[0, index].flatten(1, 2) + self.places)
        drawn = (self.cells * (made - target).abs()).mean()
        self.optimizer.zero_grad()
        (3 * head + 3 * drawn).backward()
        torch.nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        wrong = (made - target).abs()[shut].mean() if shut.any() else torch.zeros(())
        return {"head": head.item(), "drawn": drawn.item(), "shut": wrong.item()}

    def silence(self, mel: Tensor) -> Tensor:
        """Tokens of a window in the middle of an empty piece (1, n_tokens, width), made once."""
        if not hasattr(self, "_silence"):
            states = self.teacher.whisper(torch.full_like(mel[:1], (-10.0 + 4.0) / 4.0))
            self._silence = states[0, 700 : 700 + self.nets.config.window_rows].flatten(0, 1)[None]
        return self._silence


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", type=Path, nargs=2, help="two checkpoints to start between")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--speech", default=".train/carry/train.npz")
    parser.add_argument("--shards", default=".train/farmed")
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args(argv)
    torch.manual_seed(3)
    torch.set_flush_denormal(True)
    np.random.seed(3)
    settler = Settler(args)
    began, step, log = time.time(), 0, []
    while time.time() - began < args.seconds:
        done = (time.time() - began) / args.seconds
        settler.optimizer.param_groups[0]["lr"] = args.lr * min(1, (step + 1) / 10) * (1 - 0.95 * done)
        log.append(settler.step())
        step += 1
        if step % 10 == 0:
            recent = {k: round(sum(r[k] for r in log[-10:]) / 10, 5) for k in log[0]}
            print(f"{time.time() - began:.0f} s step {step} {recent}", flush=True)
            modules = {"whisper": settler.nets.whisper, "unet": settler.nets.unet, "vae": settler.nets.vae, "head": settler.head}
            store.save(args.out, modules, half=False)


if __name__ == "__main__":
    main()
