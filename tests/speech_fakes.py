"""Voices for tests: engines that give tones at once and remember what they were asked."""

import numpy as np

from talkinghead.nodes.tts.speech_engine import Chunk

RATE = 8000


class ToneEngine:
    """Says every word as 20 ms of a tone whose height follows from voice and seed; a Chunk for each sentence."""

    reads_text = True
    seeded = True
    speeds = (0.25, 4.0)

    def __init__(self, rate: int = RATE, level: float = 0.2, language: str = "en") -> None:
        self.rate, self.level, self.language, self.asked = rate, level, language, []

    def voices(self):
        return ["tone"]

    def has(self, voice):
        return voice.startswith("tone")

    def languages(self, voice):
        return (self.language,)

    def sample_rate(self, voice):
        return self.rate

    def files(self, voice):
        return ()

    def synthesize(self, text, voice, speed=1.0, seed=0, language=None):
        self.asked.append((text, voice, speed, seed, language))
        for sentence in (s for s in text.replace("?", ".").split(". ") if s.strip()):
            n = round(0.02 * self.rate * len(sentence.split()) / speed)
            turns = 2 * np.pi * (200 + seed % 97) / self.rate
            sound = self.level * np.sin(turns * np.arange(1, n + 1))
            yield Chunk(sound.astype(np.float32), self.rate, (("a", 0.0, n / self.rate),), sentence)
