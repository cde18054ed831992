"""The stages of mastering as one, for sound that comes in pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...core.report import Report
from .blocks import Stage
from .chain import Chain, Cleaner, Grid
from .duck import Ducker
from .filters import OFFSET, OffsetFilter, offset_of
from .joins import Joiner
from .levelling import MAX_GAIN_DB, OFF_LU, SILENT_LUFS, GainSearch, Level, Miss
from .levels import LevelMeter, Levels
from .limiter import Limiter
from .loudness import FollowingGain, Gain
from .options import MAX_RATE, MIN_RATE, MasterOptions
from .room_tone import RoomTone
from .speaker import Speaker

LIVE_OFF_LU = 1.0
"""A moving gain that ends so far from the target is worth a warning."""
TONE_UNDER_LU = 27.0
"""Room tone less far under the speech costs words: at 20 LU a recogniser misread 3 more of 324, at 25 LU 2, at 29 none."""


class MasterStream:
    """Mastering of sound that comes in pieces.

    `feed` takes the next sentence, float32 (channels, n), of each speaker, and gives what is ready, (channels, m);
    `finish` gives the rest. One speaker's sentences are joined with pauses. Two speakers come in stretches of the same
    length that follow each other at once, their ends as they are. `before`, `after` and `traces` are there after
    `finish`, which also tells the report. `before` is of what came in, ends and peaks as they were: the sentences with
    their pauses, or both speakers added up; only what is no number counts as 0.
    """

    before: Levels
    after: Levels

    def __init__(
        self,
        sample_rate: int,
        channels: int,
        options: MasterOptions | None = None,
        report: Report | None = None,
        speakers: int = 1,
    ) -> None:
        if not (MIN_RATE <= sample_rate <= MAX_RATE and sample_rate == int(sample_rate)):
            raise ValueError(
                f"{sample_rate} Hz cannot be mastered; bring the sound to a whole rate in {MIN_RATE}..{MAX_RATE} Hz"
            )
        if channels not in (1, 2) or speakers not in (1, 2):
            raise ValueError(
                f"{speakers} speakers of {channels} channels cannot be mastered; give one or two of each"
            )
        self.sample_rate, self._channels = int(sample_rate), channels
        self.options = o = options or MasterOptions()
        self._report = report
        self._two_passes = o.target_lufs is not None and o.lookahead_s is None
        self._cleaners = [Cleaner(self.sample_rate) for _ in range(speakers)]
        self._join = Joiner(self.sample_rate, o.pause_s, o.join_reach_s) if speakers == 1 else None
        self._grid = Grid(self.sample_rate, channels * speakers, 1.0 if self._two_passes else 0.25)
        self._speakers = [Speaker(self.sample_rate, channels, o) for _ in range(speakers)]
        ducked = speakers == 2 and o.duck_db is not None
        self._duck = Ducker(self.sample_rate, channels, o.duck_db) if ducked else None
        self._meters = [LevelMeter(self.sample_rate, channels) for _ in range(2)]
        self.traces = self._meters[0].trace, self._meters[1].trace
        self._held: list[np.ndarray] = []
        self._level: Level | None = None
        self._removed = 0.0
        self._limiter: Limiter | None = None
        self._following: FollowingGain | None = None
        self._back = self._new_back()

    def feed(self, *sounds: np.ndarray) -> np.ndarray:
        shapes = {np.shape(sound) for sound in sounds}
        if (
            len(sounds) != len(self._speakers)
            or {s[:-1] for s in shapes} != {(self._channels,)}
            or len(shapes) > 1
        ):
            raise ValueError(
                f"sound shaped {[np.shape(s) for s in sounds]} does not fit; give ({self._channels}, n) for each of "
                f"{len(self._speakers)} speakers, all of one length"
            )
        self._note_before(sounds)
        clean = [cleaner.feed(sound) for cleaner, sound in zip(self._cleaners, sounds, strict=True)]
        if self._join is not None:
            clean = [self._join.feed(clean[0])]
        return self._joined([self._through(block) for block in self._grid.feed(np.concatenate(clean))])

    def finish(self) -> np.ndarray:
        made = [self._through(block) for block in self._grid.finish()]
        made.append(self._leave(self._mixed([speaker.finish() for speaker in self._speakers])))
        if self._duck is not None:
            made.append(self._leave(self._duck.finish()))
        made.append(self._levelled() if self._two_passes else self._noted(self._back.finish()))
        self.before, self.after = (meter.finish() for meter in self._meters)
        if self._report is not None:
            self._tell(self._report)
        return self._joined(made)

    def _note_before(self, sounds: Sequence[np.ndarray]) -> None:
        """Measure what came in, in parts of the grid's size: memory does not grow with a long take."""
        if self._join is not None and self._join.next_pause and sounds[0].shape[1]:
            self._meters[0].feed(np.zeros((self._channels, self._join.next_pause), np.float32))
        for start in range(0, sounds[0].shape[1], self._grid.size):
            parts = [np.asarray(s[:, start : start + self._grid.size], np.float32) for s in sounds]
            self._meters[0].feed(sum(np.where(np.isfinite(part), part, np.float32(0)) for part in parts))

    def _through(self, block: np.ndarray) -> np.ndarray:
        """Take a block of the grid, the speakers' channels one below the other."""
        sounds = np.split(block, len(self._speakers))
        return self._leave(self._mixed([s.feed(x) for s, x in zip(self._speakers, sounds, strict=True)]))

    def _mixed(self, sounds: list[np.ndarray]) -> np.ndarray:
        return self._duck.feed(*sounds) if self._duck is not None else sum(sounds)

    def _leave(self, block: np.ndarray) -> np.ndarray:
        if self._two_passes:
            self._held.append(block)
            return block[:, :0]
        made = self._noted(self._back.feed(block))
        if self._following is not None:
            self._following.limited_to(self._meters[1].lufs())
        return made

    def _noted(self, block: np.ndarray) -> np.ndarray:
        self._meters[1].feed(block)
        return block

    def _joined(self, blocks: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.zeros((self._channels, 0), np.float32), *blocks], axis=1)

    def _new_back(self, gain_db: float | None = None) -> Chain:
        """Return the stages behind the mix; `gain_db` is the gain of all samples, None one that follows the sound."""
        o, args = self.options, (self.sample_rate, self._channels)
        stages: list[Stage] = []
        if gain_db is not None:
            stages.append(Gain(self._channels, gain_db))
        elif o.target_lufs is not None and o.lookahead_s is not None:
            self._following = FollowingGain(*args, o.target_lufs, o.lookahead_s)
            stages.append(self._following)
        if o.room_tone_dbfs is not None:
            stages.append(RoomTone(*args, o.room_tone_dbfs, o.seed))
        if o.ceiling_dbtp is not None:
            self._limiter = Limiter(*args, o.ceiling_dbtp)
            stages.append(self._limiter)
        return Chain(stages, self._channels)

    def _levelled(self) -> np.ndarray:
        """Return what was held, at the gain that brings what leaves the limiter to the target."""
        o, held = self.options, self._held
        self._remove_offset()
        search = GainSearch(held, self.sample_rate, o.target_lufs, o.ceiling_dbtp, o.room_tone_dbfs)
        self._level = search.found()
        back = self._new_back(self._level.gain_db)
        made = []
        while held:
            made.append(self._noted(back.feed(held.pop(0))))
        return self._joined([*made, self._noted(back.finish())])

    def _remove_offset(self) -> None:
        """Take an offset out of what is held: it is not heard, and the limiter would hold the speech down for it."""
        held, offsets = self._held, offset_of(self._held)
        if offsets.any():
            self._removed, high_pass = float(max(offsets, key=abs)), OffsetFilter(self.sample_rate, offsets)
            for i, block in enumerate(held):
                held[i] = high_pass.feed(block)

    def _tell(self, report: Report) -> None:
        report.fact("before mastering", str(self.before))
        report.fact("after mastering", str(self.after))
        for number, (speaker, cleaner) in enumerate(zip(self._speakers, self._cleaners, strict=True), 1):
            who = "" if len(self._speakers) == 1 else f"speaker {number}: "
            speaker.tell(report, who)
            for line in cleaner.lines():
                report.warn(who + line)
        if self._limiter is not None:
            report.fact("limiter", f"at most {self._limiter.deepest_db:.1f} dB")
        removed = max(self._removed, self._join.removed if self._join is not None else 0.0, key=abs)
        if removed:
            report.fact("offset", f"an offset of {removed:.3g} of full scale was taken out")
        elif not self._two_passes and abs(self.before.offset) > OFFSET:
            report.warn(
                f"the sound has an offset of {self.before.offset:.3g} of full scale, which takes headroom and is not "
                "heard; remove it where it was made"
            )
        self._tell_tone(report, self.options.room_tone_dbfs, self.after.lufs)
        if self.options.target_lufs is not None:
            self._tell_loudness(report, self.options.target_lufs, self.after.lufs)

    def _tell_tone(self, report: Report, tone: float | None, lufs: float) -> None:
        alone = math.isinf(self.before.lufs) or (self._level is not None and self._level.missed is not None)
        if tone is not None and not alone and lufs - tone < TONE_UNDER_LU:
            report.warn(
                f"the room tone of {tone:g} dBFS lies {lufs - tone:.0f} dB under the sound ({lufs:.1f} LUFS), where it "
                f"covers consonants; let it be {math.floor(lufs - TONE_UNDER_LU)} dBFS or lower, or off"
            )

    def _tell_loudness(self, report: Report, target: float, lufs: float) -> None:
        o = self.options
        if self._level is None:
            if math.isinf(self.before.lufs):
                report.warn(
                    f"nothing is louder than -70 LUFS, or all is shorter than 0.1 s: it was not brought to {target:g} LUFS"
                )
            elif abs(lufs - target) > LIVE_OFF_LU:
                report.warn(
                    f"{lufs:.1f} LUFS instead of {target:g}: the gain knows {o.lookahead_s:g} s of what comes and rises by "
                    "1 dB/s at most; mastered as a whole it ends on the target"
                )
        elif self._level.missed is Miss.SHORT:
            report.warn(
                f"the sound is shorter than 0.1 s, too short for a loudness: it was not brought to {target:g} LUFS"
            )
        elif self._level.missed is Miss.SILENT:
            report.warn(
                f"the sound is silent (under {SILENT_LUFS:g} LUFS): it was not brought to {target:g} LUFS"
            )
        elif abs(lufs - target) > OFF_LU:
            report.warn(f"{lufs:.1f} LUFS instead of {target:g}: {self._why()}")

    def _why(self) -> str:
        """Say why no gain reaches the target, and what to do."""
        o, taken = self.options, self._limiter.deepest_db if self._limiter is not None else 0.0
        return {
            Miss.GAIN: f"the sound would need more than the {MAX_GAIN_DB:g} dB of gain there are; record it louder",
            Miss.TONE: f"the room tone of {o.room_tone_dbfs} dBFS alone is louder; lower it, or 0 for none",
            Miss.PEAKS: (
                f"its loudness is in peaks that the limit of {o.ceiling_dbtp} dBTP holds (the limiter takes {taken:.1f} dB), "
                f"and more gain brings it no nearer; ask for {math.floor(self.after.lufs)} LUFS, or lower the peaks before"
            ),
            None: "it was estimated to reach it; please report this sound",
        }[self._level.missed]
