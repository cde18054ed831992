"""MuseTalk at a cadence: the UNet draws the key frames, latents between keys are interpolated, silence is at rest.

All of it happens on generated latents, before the decoder; pixels are never mixed. Work is grouped by counting keys
and frames from frame 0, so the result depends neither on how many frames the consumer asks for nor on the sound's end,
nor, live, on when the sound came. A file fills its passes (`_FullPasses`), live speech must not wait for that
(`_FixedPasses`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..core.cadence import CadenceOptions, FramePlan, StrideMix, plan_frames, slerp
from ..core.frames import Placement, RunContext
from ..core.host_copy import UNDER_WAY, Arriving, HostCopies, one_ahead, upload
from ..core.loudness import LiveLoudness
from ..core.pool import Resident
from ..core.report import FrameList, Report
from ..core.stage_runner import StageRunner
from .rest import RestFaces
from .speech import windows_ahead
from .split_stages import decoder_stage, unet_stage

if TYPE_CHECKING:
    from .render import CropStream

_HELD = 4
"""Batches of frames that may wait for a pass to fill up, before it runs padded."""
_STEADY = {"dense": 1, "2": 2, "3": 3, "adaptive": 2}
"""Frames of steady live speech for one key: a chunk's keys fill passes of the UNet that are smaller by this."""


@dataclass(eq=False)
class DrawnFrame:
    """A video frame on its way: `avatar` frame that it shows, tokens (n_tokens, d_model) that it hears.

    latents: generated float32 (C, h, w), None where the rest crop is shown. ok: whether they are finite. again: computed
    in fp32, for it was not.
    """

    plan: FramePlan
    avatar: int
    found: bool
    tokens: Tensor = field(repr=False)
    latents: Tensor | None = field(default=None, repr=False)
    ok: bool = True
    again: bool = False


class CropMemory(Protocol):
    """What may know the crop of a frame without decoding it. Frames are asked for in order."""

    def recall(self, frames: Sequence[DrawnFrame]) -> dict[int, Any]:
        """Return by frame number what `crop` wants for frames that need no decoding. They may wait for one that does."""

    def learn(self, frame: DrawnFrame, crop: Tensor | None) -> None:
        """Take note of what was decoded for a frame that was not recalled, None if it is not usable. It belongs to a
        batch: copy what is kept."""

    def crop(self, frame: DrawnFrame, recalled: Any) -> tuple[Tensor, bool]:
        """Return the crop uint8 (crop, crop, 3) of a recalled frame, and whether it is usable. Called when all that was
        decoded of the frames before is learned."""

    def tell(self, report: Report) -> None:
        """Report what was recalled."""


@dataclass(frozen=True, eq=False)
class _Keys:
    """Frames up to and including the last of `keys`, which the UNet is working at."""

    frames: list[DrawnFrame]
    keys: list[DrawnFrame]
    inputs: dict[str, Tensor] = field(default_factory=dict)
    generated: Tensor | None = None
    finite: Arriving | None = None


@dataclass(frozen=True, eq=False)
class _Pictures:
    """Frames ready to be shown once those of `work` are decoded. recalled: what needs no decoding, by frame."""

    frames: list[DrawnFrame]
    work: list[DrawnFrame]
    recalled: dict[int, Any]
    latents: Tensor | None = None
    crops: Tensor | None = None
    finite: Arriving | None = None


class _FullPasses:
    """Of a file: a pass runs when it is full, or frames have waited long enough, or there is nothing to wait for."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def is_due(self, frames: Sequence[DrawnFrame], work: Sequence[DrawnFrame]) -> bool:
        """Return whether a pass over `work` is to run; `frames` are those since the last one, one more each time."""
        most = _HELD * self._batch if work else self._batch
        return len(work) == self._batch or len(frames) >= most


class _FixedPasses:
    """Of live speech: the work of one chunk at a time, which is `first` frames and then always `batch`, counted from frame 0.

    to_keys: the pass waits for the key behind the chunk's last frame, if that frame lies between two. It is 2 frames
    away at most, and takes the place of the last frame: `batch` rows are enough.
    """

    def __init__(self, first: int, batch: int, to_keys: bool) -> None:
        self._end, self._batch, self._to_keys = first, batch, to_keys

    def is_due(self, frames: Sequence[DrawnFrame], work: Sequence[DrawnFrame]) -> bool:
        """As that of `_FullPasses`."""
        newest = frames[-1]
        if newest.plan.frame < self._end - 1 or (self._to_keys and _is_between(newest)):
            return False
        while self._end <= newest.plan.frame + 1:
            self._end += self._batch
        return True


class CadenceRun:
    """One run of a CropStream at a cadence; `batches` gives its crops, `tell` reports what was done."""

    def __init__(
        self,
        ctx: RunContext,
        stream: CropStream,
        resident: Resident,
        options: CadenceOptions,
        memory: CropMemory | None = None,
    ) -> None:
        self._ctx, self._resident, self._options, self._memory = ctx, resident, options, memory
        self._speech, self._avatar, self._batch = stream.speech, stream.avatar, stream.batch
        self._is_live = stream.speech.n_frames is None
        rows = -(-stream.batch // _STEADY[options.mode]) if self._is_live else stream.batch
        self._unet = StageRunner(ctx, stream.model, unet_stage, rows)
        self._decoder = StageRunner(ctx, stream.model, decoder_stage, stream.batch)
        self._rest = RestFaces(ctx, stream.model, resident, self._unet, self._decoder, stream.batch)
        self._key_flags, self._crop_flags = HostCopies(UNDER_WAY), HostCopies(UNDER_WAY)
        self._keys: dict[int, DrawnFrame] = {}
        self._mix, self._loudest = StrideMix(), 0.0
        self._faceless, self._broken, self._again = FrameList(), FrameList(), FrameList()
        self._precision = stream.model.precision
        if self._precision == "fp8":
            ctx.warn(
                "fp8 is for cadence dense without rest and viseme cache; with this cadence the networks run in fp16"
            )

    def batches(self) -> Generator[tuple[Tensor, Placement], None, None]:
        """Yield the crops of every frame, in order, with their placement."""
        device = self._ctx.device
        if self._is_live and self._options.rest:
            with self._ctx.report.timed("neural"):
                self._rest.crop(0)  # before there is sound: later a chunk would be late for it
        with closing(self._planned()) as planned:
            drawn = self._between_keys(one_ahead(self._drawing(planned), device))
            for pictures in one_ahead(self._decoding(drawn), device):
                if pictures is None:
                    continue
                shown = self._shown(pictures)
                self._tell_counts()  # as they stand: a page may watch the run
                yield shown

    def tell(self) -> None:
        """Put into the report what was drawn how, and which frames could not be."""
        report = self._ctx.report
        self._tell_counts()
        if self._again:
            how = f"{self._precision} on {self._decoder.backend}"
            report.warn(f"frames {self._again}: not finite in {how}, computed again in fp32")
        why = {"no face in the avatar": self._faceless, "the network's output is not finite": self._broken}
        for reason, frames in why.items():
            if frames:
                report.warn(f"frames {frames}: {reason}, the avatar's own frame is shown")
        if warning := self._mix.never_spoke(self._loudest, self._options):
            report.warn(warning)

    def _tell_counts(self) -> None:
        self._mix.tell(self._ctx.report)
        if self._memory:
            self._memory.tell(self._ctx.report)

    def _planned(self) -> Generator[DrawnFrame | None, None, None]:
        """Yield every frame with its plan. None: live speech has no more at hand and will wait for sound."""
        fps, start = self._speech.fps, 0
        energies, make, n = self._listen()
        plans = plan_frames(self._heard(energies), self._options, fps, self._usable(fps))
        windows = windows_ahead(self._ctx, make, n)
        with closing(windows):
            for tokens in windows:
                if tokens is None:
                    yield None
                    continue
                shown = self._avatar.avatar_indices(start, len(tokens), fps).tolist()
                for avatar, heard in zip(shown, tokens, strict=True):
                    plan = next(plans)
                    self._mix.add(plan)
                    yield DrawnFrame(plan, avatar, bool(self._resident.reader.found[avatar]), heard)
                start += len(tokens)

    def _listen(self) -> tuple[Iterator[float], Callable[[], Iterator[Tensor | None]], int]:
        """Return the loudness of the frames, what gives their tokens, and how many frames of them at a time."""
        ctx, speech, batch = self._ctx, self._speech, self._batch
        if not self._is_live:
            return speech.energies(), lambda: speech.windows(ctx, batch), batch
        loudness = LiveLoudness(speech.fps)
        # One by one: a chunk may need the one frame behind it that is a key, and not a batch of them.
        return loudness, lambda: speech.windows(ctx, 1, loudness), 1

    def _passes(self, to_keys: bool) -> _FullPasses | _FixedPasses:
        if not self._is_live:
            return _FullPasses(self._batch)
        first = min(self._speech.first_batch or self._batch, self._batch)
        return _FixedPasses(first, self._batch, to_keys)

    def _heard(self, energies: Iterator[float]) -> Iterator[float]:
        for rms in energies:
            self._loudest = max(self._loudest, rms)
            yield rms

    def _usable(self, fps: Fraction) -> Iterator[bool]:
        found, step = self._resident.reader.found, 256
        for start in count(0, step):
            yield from found[torch.from_numpy(self._avatar.avatar_indices(start, step, fps))].tolist()

    def _drawing(self, planned: Iterable[DrawnFrame | None]) -> Iterator[_Keys | None]:
        """Send the keys through the UNet, `batch` at most; whoever asks for the next need not have seen the last."""
        passes, frames, keys = self._passes(to_keys=True), [], []
        for frame in planned:
            if frame is None:
                yield None
                continue
            frames.append(frame)
            if frame.plan.is_key:
                keys.append(frame)
            if passes.is_due(frames, keys):
                yield self._draw(frames, keys)
                frames, keys = [], []
        if frames:
            yield self._draw(frames, keys)

    def _draw(self, frames: list[DrawnFrame], keys: list[DrawnFrame]) -> _Keys:
        if not keys:
            return _Keys(frames, keys)
        with self._ctx.report.timed("neural"):
            inputs = {
                "latents": self._avatar_latents(key.avatar for key in keys),
                "tokens": torch.stack([key.tokens for key in keys]),
            }
            out = self._unet(**inputs)
            return _Keys(frames, keys, inputs, out["generated"], self._key_flags.send(out["finite"]))

    def _avatar_latents(self, avatars: Iterable[int]) -> Tensor:
        latents = self._resident.latents
        return latents[upload(torch.tensor(list(avatars)), latents.device)]

    def _between_keys(self, drawn: Iterable[_Keys | None]) -> Iterator[list[DrawnFrame] | None]:
        """Give the frames their latents: keys their own, those between two keys when both are drawn."""
        waiting: list[DrawnFrame] = []
        for group in drawn:
            if group is None:
                yield None
                continue
            with self._ctx.report.timed("neural"):
                self._take_keys(group)
                waiting += group.frames
                last = max(self._keys, default=-1)
                ready = next(
                    (i for i, f in enumerate(waiting) if f.plan.right > last and _is_between(f)), None
                )
                done, waiting = waiting[:ready], waiting[ready:] if ready is not None else []
                self._interpolate([f for f in done if _is_between(f)])
                self._ease([f for f in done if f.plan.stride and f.plan.weight < 1])
                self._keys = {frame: key for frame, key in self._keys.items() if frame == last}
            yield done

    def _take_keys(self, group: _Keys) -> None:
        if group.generated is None:
            return
        latents, finite = group.generated.float(), torch.from_numpy(group.finite.take()).clone()
        group.finite.release()
        if not finite.all() and (again := self._unet.exactly(**group.inputs)):
            saved = ~finite & again["finite"].cpu()
            at = saved.nonzero()[:, 0].to(latents.device)
            latents[at] = again["generated"][at].to(latents)
            finite |= saved
            for key, was_saved in zip(group.keys, saved.tolist(), strict=True):
                key.again = was_saved
        for key, own, ok in zip(group.keys, latents, finite.tolist(), strict=True):
            key.latents, key.ok = own, ok
            self._keys[key.plan.frame] = replace(key)  # as drawn: the frame itself may be eased

    def _interpolate(self, frames: list[DrawnFrame]) -> None:
        """Frames between two keys: generated latents on the sphere, plus the avatar's own movement.

        The keys' reference latents say what of the picture is the avatar's. What it does between the keys is not
        interpolated but taken from the frame's own reference: demo_loop, stride 2, around the mouth box: 58.9 dB of
        the dense crop instead of 36.9. Of a still avatar this adds exact zeros.
        """
        if not frames:
            return
        left = [self._keys[f.plan.left] for f in frames]
        right = [self._keys[f.plan.right] for f in frames]
        a, b = (torch.stack([key.latents for key in keys]) for keys in (left, right))
        t = upload(torch.tensor([f.plan.position for f in frames]), a.device)
        made = slerp(a, b, t)
        if self._avatar.info.n_frames > 1:
            own, before, behind = (self._reference(some, made) for some in (frames, left, right))
            made = made + (own - (before + t.view(-1, 1, 1, 1) * (behind - before)))
        for frame, latents, one, other in zip(frames, made, left, right, strict=True):
            frame.latents, frame.ok = latents, one.ok and other.ok

    def _reference(self, frames: list[DrawnFrame], like: Tensor) -> Tensor:
        """Latents (n, C, h, w) of the avatar's own picture, behind the masked ones in its packet."""
        return self._avatar_latents(f.avatar for f in frames)[:, like.shape[1] :].to(like)

    def _ease(self, frames: list[DrawnFrame]) -> None:
        """Frames on their way into or out of rest: between the rest latents of their avatar frame and their own."""
        if not frames:
            return
        rest = [self._rest.latents(f.avatar) for f in frames]
        own = torch.stack([f.latents for f in frames])
        weight = upload(torch.tensor([f.plan.weight for f in frames]), own.device)
        made = slerp(torch.stack([latents for latents, _ in rest]), own, weight)
        for frame, latents, (_, ok) in zip(frames, made, rest, strict=True):
            frame.latents, frame.ok = latents, frame.ok and ok

    def _decoding(self, ready: Iterable[list[DrawnFrame] | None]) -> Iterator[_Pictures | None]:
        """Send latents through the decoder, `batch` at most; frames at rest and recalled ones need none."""
        passes = self._passes(to_keys=False)
        frames, work, recalled = [], [], {}
        for group in ready:
            if group is None:
                yield None
                continue
            known = self._recall(group)
            for frame in group:
                frames.append(frame)
                number = frame.plan.frame
                if number in known:
                    recalled[number] = known[number]
                elif frame.latents is not None:
                    work.append(frame)
                if passes.is_due(frames, work):
                    yield self._decode(frames, work, recalled)
                    frames, work, recalled = [], [], {}
        if frames:
            yield self._decode(frames, work, recalled)

    def _recall(self, frames: list[DrawnFrame]) -> dict[int, Any]:
        if self._memory is None:
            return {}
        with self._ctx.report.timed("viseme cache"):
            return self._memory.recall([f for f in frames if f.latents is not None and f.ok])

    def _decode(self, frames: list[DrawnFrame], work: list[DrawnFrame], recalled: dict) -> _Pictures:
        if not work:
            return _Pictures(frames, work, recalled)
        with self._ctx.report.timed("neural"):
            latents = torch.stack([f.latents for f in work])
            out = self._decoder(generated=latents)
            flags = self._crop_flags.send(out["finite"])
            return _Pictures(frames, work, recalled, latents, out["crops"], flags)

    def _shown(self, pictures: _Pictures) -> tuple[Tensor, Placement]:
        with self._ctx.report.timed("neural"):
            self._take_crops(pictures)
            made, rows = {}, []
            if pictures.work:
                made |= zip((f.plan.frame for f in pictures.work), pictures.crops, strict=True)
            for frame in pictures.frames:
                number = frame.plan.frame
                if number in pictures.recalled:
                    crop, frame.ok = self._memory.crop(frame, pictures.recalled[number])
                    crop = upload(crop, self._decoder.device)
                elif number in made:
                    crop = made[number]
                else:
                    crop, frame.ok = self._rest.crop(frame.avatar)
                rows.append(crop)
            whole = len(pictures.work) == len(rows)
            crops = pictures.crops if whole else torch.stack(rows)
        return crops, self._placement(pictures.frames)

    def _take_crops(self, pictures: _Pictures) -> None:
        """Wait for the flags of the decoded crops; those that are not finite though their latents are, again in fp32."""
        if not pictures.work:
            return
        finite = torch.from_numpy(pictures.finite.take()).clone()
        pictures.finite.release()
        lost = ~finite & torch.tensor([f.ok for f in pictures.work])
        if lost.any() and (again := self._decoder.exactly(generated=pictures.latents)):
            saved = lost & again["finite"].cpu()
            at = saved.nonzero()[:, 0].to(pictures.crops.device)
            pictures.crops[at] = again["crops"][at].to(pictures.crops)
            finite |= saved
            for frame, was_saved in zip(pictures.work, saved.tolist(), strict=True):
                frame.again |= was_saved
        for frame, crop, is_finite in zip(pictures.work, pictures.crops, finite.tolist(), strict=True):
            frame.ok = frame.ok and is_finite
            if self._memory:
                self._memory.learn(frame, crop if frame.ok else None)

    def _placement(self, frames: list[DrawnFrame]) -> Placement:
        start = frames[0].plan.frame
        self._faceless.add(start, (not f.found for f in frames))
        self._broken.add(start, (f.found and not f.ok for f in frames))
        self._again.add(start, (f.found and f.again for f in frames))
        return Placement(
            torch.tensor([f.avatar for f in frames]), torch.tensor([f.found and f.ok for f in frames])
        )


def _is_between(frame: DrawnFrame) -> bool:
    return frame.plan.left != frame.plan.right
