"""What mastering does to one speaker's sound before it is mixed and levelled."""

from __future__ import annotations

import numpy as np

from ...core.report import Report
from .blocks import Stage
from .chain import Chain
from .deesser import DeEsser
from .filters import LowPass, band_applies, lowpass_applies
from .options import MasterOptions
from .sibilants import TerminalFricatives


class Speaker:
    """Low-pass, de-esser and long fricatives, each if it is on and the rate leaves it something to do."""

    def __init__(self, rate: int, channels: int, options: MasterOptions) -> None:
        self._rate, self._options = rate, options
        reaches = band_applies(rate)
        self._deesser = (
            DeEsser(rate, channels, options.deess_db) if options.deess_db is not None and reaches else None
        )
        self._fricatives = (
            TerminalFricatives(rate, channels, options.fricative_s)
            if options.fricative_s is not None and reaches
            else None
        )
        filters = options.lowpass_hz is not None and lowpass_applies(rate, options.lowpass_hz)
        lowpass = LowPass(rate, channels, options.lowpass_hz) if filters else None
        stages: list[Stage | None] = [lowpass, self._deesser, self._fricatives]
        self._chain = Chain([s for s in stages if s is not None], channels)

    def feed(self, block: np.ndarray) -> np.ndarray:
        return self._chain.feed(block)

    def finish(self) -> np.ndarray:
        return self._chain.finish()

    def tell(self, report: Report, who: str) -> None:
        """Add to `report` what was done; `who` is put in front of every fact."""
        o = self._options
        if self._deesser is not None:
            report.fact(f"{who}de-esser", f"at most {self._deesser.deepest_db:.1f} dB of 4.8-8.2 kHz")
        if self._fricatives is not None:
            report.fact(f"{who}long fricatives", f"{self._fricatives.shortened} shortened")
        if o.lowpass_hz is not None and not lowpass_applies(self._rate, o.lowpass_hz):
            report.fact(
                f"{who}low-pass", f"nothing to do: {self._rate} Hz hold nothing above {o.lowpass_hz:g} Hz"
            )
        if (o.deess_db is not None or o.fricative_s is not None) and not band_applies(self._rate):
            report.fact(f"{who}sibilants", f"nothing to do: {self._rate} Hz do not reach into 4.8-8.2 kHz")
