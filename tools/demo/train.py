"""Training: the autoencoder (`vae`), the audio encoder alone (`audio`), and everything together (`joint`).

Each stage captures its whole step, drawing and augmentation included, in one CUDA graph and replays it until its
share of wall time is used up; on a CPU the same step runs eagerly (for a dry run). The learning rate follows a
cosine over wall time. Files go to --out: NAME.safetensors (weights to go on from) and NAME_ema.safetensors.
"""

import argparse
import copy
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import nets as store
from .corpus import AudioSource, finish_mel, mel_level, unpack, warped_filters
from .pictures import (
    Painter,
    blacked,
    dark_threshold,
    picture_loss,
    soft_opening,
    to_input,
    weight_map,
)

HEAD_WEIGHT = (2.0, 0.5, 0.7)


class Averager:
    """Running average of weights, updated on the device inside the captured step."""

    def __init__(self, modules: dict[str, nn.Module], decay: float):
        self.modules, self.decay = modules, decay
        self.copies = {k: copy.deepcopy(m).requires_grad_(False) for k, m in modules.items()}
        self.live = [p for m in modules.values() for p in m.parameters()]
        self.mean = [p for m in self.copies.values() for p in m.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self.mean, self.live, 1 - self.decay)

    @torch.no_grad()
    def restart(self) -> None:
        torch._foreach_copy_(self.mean, self.live)


class Stage:
    """One training stage: subclasses give modules, groups and `loss`."""

    ema = 0.999
    weight_decay = 0.01

    def __init__(self, args: argparse.Namespace):
        self.args, self.device = args, torch.device(args.device)
        self.on_gpu = self.device.type == "cuda"

    def start(self) -> None:
        groups = [
            {"params": [p for p in params if p.requires_grad], "lr": torch.tensor(0.0, device=self.device), "peak": peak}
            for params, peak in self.groups()
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=self.weight_decay,
                                           fused=self.on_gpu, capturable=self.on_gpu)
        self.averager = Averager(self.modules, self.ema)

    def step(self) -> dict[str, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu, cache_enabled=False):
            parts = self.loss()
        parts["loss"].backward()
        for group in self.optimizer.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0, foreach=True)
        self.optimizer.step()
        self.averager.update()
        return {k: v.detach() for k, v in parts.items()}

    def set_rate(self, progress: float, step: int) -> None:
        shape = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        first = self.args.lr_from * (1 - progress) + self.args.lr_to * progress
        scale = (self.args.lr_to + (self.args.lr_from - self.args.lr_to) * shape) if self.args.shape == "cosine" else first
        scale *= min(1.0, (step + 1) / 100)
        for group in self.optimizer.param_groups:
            group["lr"].fill_(group["peak"] * scale)

    def note(self) -> str:
        return ""


class VaeStage(Stage):
    def __init__(self, args):
        super().__init__(args)
        nets = store.new_nets().to(self.device)
        self.config, self.vae = nets.config, nets.vae
        self.modules = {"vae": self.vae}
        load_from(args, self.modules)
        if args.channels_last:
            self.vae.to(memory_format=torch.channels_last)
        size = self.config.crop_size
        self.painter = Painter(size, self.device, args.compile)
        self.weight = weight_map(size, self.device, upper=0.6, lips=3.5)
        self.run = torch.compile(self.round_trip, dynamic=False) if args.compile_nets else self.round_trip

    def groups(self):
        return [(self.vae.parameters(), 2e-3)]

    def round_trip(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, _ = self.vae.encode(x)
        scaled = mean * self.config.vae.scaling_factor
        noisy = scaled + 0.03 * torch.randn_like(scaled)
        return self.vae.decode(noisy / self.config.vae.scaling_factor), scaled

    def loss(self):
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            whole = to_input(self.painter.singles(self.args.batch))
            n_black = self.args.batch // 6
            x = torch.cat([blacked(whole[:n_black], self.config.masked_from_row), whole[n_black:]])
        if self.args.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        made, scaled = self.run(x)
        picture = picture_loss(made, x, self.weight)
        spread = scaled.float().square().mean()
        return {"loss": picture + 0.02 * F.relu(spread - 1.0), "picture": picture, "latent_rms": spread.sqrt(),
                "psnr": -10 * torch.log10((0.5 * (made.float() - x)[n_black:]).square().mean())}


class AudioPart:
    """Whisper encoder with the training head on augmented pieces; shared by two stages."""

    def make(self, args, whisper, config, device):
        self.whisper = whisper
        states = config.whisper.encoder_layers + 1
        self.head = store.MouthHead(states, config.whisper.d_model, config.window_rows).to(device)
        self.left = 2 * config.window_left
        self.window = config.window_rows
        shards = Path(args.shards) if args.shards else None
        weights = {"joe": 4.0, "espeak": 0.5, "blend": 1.2} if shards else None
        self.source = AudioSource(Path(args.speech), device, shards=shards, weights=weights)
        self.check = read_check(Path(args.check), device) if args.check else []

    def heard(self, pieces: int):
        with torch.no_grad(), torch.autocast(self.source.audio.device.type, enabled=False):
            mel, curve, rows = self.source.draw(pieces)
        states = self.whisper(mel) * rows[..., None, None]
        guess = self.head(states)  # position k: window of rows k .. k + 9, so frame row k + 4
        want = curve[:, self.left : self.left + guess.shape[1]]
        heard = rows[:, self.left : self.left + guess.shape[1]]
        head_loss = ((guess.float() - want).square() * self.head_weight * heard[..., None]).mean()
        return states, curve, head_loss

    @torch.no_grad()
    def voice_scores(self, whisper, head) -> dict[str, float]:
        """Correlation of opening with the truth, per voice, on clean validation speech (head only)."""
        scores = {}
        for voice, mel, curve in self.check:
            guess = head(whisper(mel).float())[..., 0].flatten()
            want = curve[:, self.left : self.left + guess.numel() // len(curve), 0].flatten()
            scores[voice] = round(float(torch.corrcoef(torch.stack([guess, want]))[0, 1]), 3)
        return scores


def read_check(path: Path, device) -> list:
    """Clean 30 s pieces of a packed validation set, per voice: (voice, mel, curve at rows)."""
    wave, curve, spans = unpack(path)
    filters = warped_filters(80, device, (1.0,))
    result = []
    for voice, first, end in spans:
        n = max(1, (end - first) // 480000)
        audio = torch.zeros(n, 480000)
        rows = torch.zeros(n, 1500, 3)
        for i in range(n):
            a = first + i * 480000
            part = wave[a : min(a + 480000, end)]
            audio[i, : len(part)] = torch.from_numpy(part / 32768.0)
            at = (a // 160) + (torch.arange(1500) * 2 + 2)
            rows[i] = torch.from_numpy(curve)[at.clamp(max=len(curve) - 1)] * (at[:, None] < end // 160)
        mel = finish_mel(mel_level(audio.to(device), filters))
        result.append((voice, mel, rows.to(device)))
    return result


class AudioStage(AudioPart, Stage):
    weight_decay = 0.05

    def __init__(self, args):
        super().__init__(args)
        nets = store.new_nets().to(self.device)
        self.config = nets.config
        self.make(args, nets.whisper, nets.config, self.device)
        self.modules = {"whisper": self.whisper, "head": self.head}
        load_from(args, self.modules)
        self.head_weight = torch.tensor(HEAD_WEIGHT, device=self.device)

    def groups(self):
        return [([*self.whisper.parameters(), *self.head.parameters()], 1.5e-3)]

    def loss(self):
        _, _, head_loss = self.heard(self.args.pieces)
        return {"loss": head_loss, "head": head_loss}

    def note(self) -> str:
        means = self.averager.copies
        return json.dumps(self.voice_scores(means["whisper"], means["head"]))


class JointStage(AudioPart, Stage):
    weight_decay = 0.02

    def __init__(self, args):
        super().__init__(args)
        nets = store.new_nets().to(self.device)
        self.config, self.unet, self.vae = nets.config, nets.unet, nets.vae
        self.make(args, nets.whisper, nets.config, self.device)
        self.modules = {"whisper": nets.whisper, "head": self.head, "unet": nets.unet, "vae": nets.vae}
        load_from(args, self.modules)
        self.vae.encoder.requires_grad_(False)
        self.vae.quant_conv.requires_grad_(False)
        self.head_weight = torch.tensor(HEAD_WEIGHT, device=self.device)
        if args.channels_last:
            for part in (self.unet, self.vae):
                part.to(memory_format=torch.channels_last)
        size = self.config.crop_size
        self.painter = Painter(size, self.device, args.compile)
        self.weight = weight_map(size, self.device, upper=0.25, lips=6.0)
        self.cells = F.avg_pool2d(self.weight, size // self.config.latent_size)
        model = store.pack_module("nodes.musetalk.whisper")
        self.places = model.positional_encoding(self.config.n_tokens, self.config.whisper.d_model, self.device)
        self.generate = torch.compile(self.forward, dynamic=False) if args.compile_nets else self.forward
        self.encode = torch.compile(self.vae.encode, dynamic=False) if args.compile_nets else self.vae.encode

    def groups(self):
        decoder = [*self.vae.decoder.parameters(), *self.vae.post_quant_conv.parameters()]
        listening = [*self.whisper.parameters(), *self.head.parameters()]
        return [(self.unet.parameters(), 1e-3), (listening, 5e-4), (decoder, 2.5e-4)]

    def forward(self, latents: Tensor, tokens: Tensor, n_decoded: int) -> tuple[Tensor, Tensor]:
        made = self.unet(latents, tokens)
        return made, self.vae.decode(made[:n_decoded] / self.config.vae.scaling_factor)

    def frames(self, states: Tensor, curve: Tensor, each: int) -> tuple[Tensor, Tensor]:
        """Windows of `each` random rows of every piece: tokens (pieces * each, n_tokens, d), mouths."""
        pieces, rows = states.shape[:2]
        first = torch.randint(rows - self.window + 1, (pieces, each), device=self.device)
        index = first[..., None] + torch.arange(self.window, device=self.device)
        piece = torch.arange(pieces, device=self.device)[:, None, None]
        tokens = states[piece, index].flatten(0, 1).flatten(1, 2)
        mouth = curve[piece[..., 0], first + self.left].flatten(0, 1)
        return tokens + self.places.to(tokens.dtype), mouth.float().contiguous()

    @torch.no_grad()
    def latents(self, picture: Tensor) -> Tensor:
        if self.args.channels_last:
            picture = picture.contiguous(memory_format=torch.channels_last)
        return self.encode(picture)[0] * self.config.vae.scaling_factor

    def loss(self):
        args = self.args
        states, curve, head_loss = self.heard(args.pieces)
        tokens, mouth = self.frames(states, curve, args.frames)
        with torch.no_grad():
            with torch.autocast(self.device.type, enabled=False):
                target, reference, look = self.painter.pair(mouth)
                target, reference = to_input(target), to_input(reference)
            wanted = self.latents(target)
            seen = torch.cat([self.latents(blacked(target, self.config.masked_from_row)), self.latents(reference)], 1)
            seen = seen + 0.02 * torch.randn_like(seen)
        made, picture = self.generate(seen, tokens, args.decoded)
        latent_loss = (self.cells * (made.float() - wanted.float()).abs()).mean()
        truth = target[: args.decoded]
        shown = picture_loss(picture, truth, self.weight)
        edge = dark_threshold(look)[: args.decoded]
        gap = soft_opening(picture / 2 + 0.5, edge) - soft_opening(truth / 2 + 0.5, edge)
        opening = gap.abs().mean() + 4 * gap.square().mean()
        loss = 0.5 * latent_loss + 3.0 * shown + 2.0 * opening + 3.0 * head_loss
        return {"loss": loss, "latent": latent_loss, "picture": shown, "opening": opening, "head": head_loss}

    def note(self) -> str:
        means = self.averager.copies
        return json.dumps(self.voice_scores(means["whisper"], means["head"]))


STAGES = {"vae": VaeStage, "audio": AudioStage, "joint": JointStage}


def load_from(args: argparse.Namespace, modules: dict[str, nn.Module]) -> None:
    for path in args.resume:
        print("loaded", path, store.load(Path(path), modules), flush=True)


def capture(stage: Stage):
    """Warm up and capture the step; returns a function that replays it, and its outputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            stage.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    stage.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        outputs = stage.step()
    return graph.replay, outputs


def write(stage: Stage, out: Path, name: str, half: bool) -> None:
    store.save(out / f"{name}.safetensors", stage.modules, half)
    store.save(out / f"{name}_ema.safetensors", stage.averager.copies, half)


def train(args: argparse.Namespace) -> None:
    began = time.time()
    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    stage = args.stages[args.stage](args)
    stage.start()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    stage.set_rate(0.0, 0)
    if stage.on_gpu:
        replay, outputs = capture(stage)
        stage.averager.restart()
    ready = time.time()
    print(f"[{args.name}] ready after {ready - began:.1f} s", flush=True)
    step, last_note, marks = 0, ready, 0
    while time.time() - began < args.seconds and step < args.max_steps:
        stage.set_rate((time.time() - ready) / max(args.seconds - (ready - began), 1e-6), step)
        if stage.on_gpu:
            replay()
            if step % 8 == 7:
                torch.cuda.synchronize()  # keeps wall time honest and the queue short
        else:
            outputs = stage.step()
        step += 1
        if step == 300 and stage.on_gpu:
            stage.averager.restart()
        if time.time() - last_note > args.note_s:
            last_note = time.time()
            values = " ".join(f"{k} {float(v):.4f}" for k, v in outputs.items())
            rate = step / (last_note - ready)
            print(f"[{args.name}] {last_note - began:5.0f} s step {step} {rate:.1f}/s {values} {stage.note()}", flush=True)
            marks += 1
            if not math.isfinite(float(outputs["loss"])):
                raise SystemExit("loss is not finite")
            if marks % 3 == 0:
                write(stage, out, args.name, args.half)
    write(stage, out, args.name, args.half)
    peak = torch.cuda.max_memory_allocated() / 1e9 if stage.on_gpu else 0.0
    print(f"[{args.name}] done: {step} steps in {time.time() - began:.0f} s, {step / (time.time() - ready):.2f}/s, "
          f"{peak:.1f} GB {stage.note()}", flush=True)


def main(argv: list[str] | None = None, stages: dict[str, type[Stage]] = STAGES) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="wall time of this process, set-up included")
    parser.add_argument("--resume", nargs="*", default=[])
    parser.add_argument("--speech", default=".train/carry/train.npz")
    parser.add_argument("--shards", default="", help="folder of more training shards")
    parser.add_argument("--check", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=160)
    parser.add_argument("--pieces", type=int, default=12)
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--decoded", type=int, default=160)
    parser.add_argument("--faces", type=int, default=40000, help="of the pool of pictures (Ditto)")
    parser.add_argument("--keep-norms", action="store_true", help="statistics of batch norms stay as they are (Ditto)")
    parser.add_argument("--own-from", type=int, default=800, help="step from which the extractor's own key points are used (Ditto)")
    parser.add_argument("--max-steps", type=int, default=10**9)
    parser.add_argument("--note-s", type=float, default=20)
    parser.add_argument("--lr-from", type=float, default=1.0)
    parser.add_argument("--lr-to", type=float, default=0.01)
    parser.add_argument("--shape", choices=("cosine", "linear"), default="cosine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--half", action="store_true", help="write fp16")
    parser.add_argument("--compile", action="store_true", help="compile the drawing")
    parser.add_argument("--compile-nets", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.set_defaults(stages=stages)
    train(parser.parse_args(argv))


if __name__ == "__main__":
    main()
