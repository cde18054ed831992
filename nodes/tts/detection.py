"""Which language a text is in: evidence of its words, their spelling and its numbers, added up.

Function words weigh most. A name says little (El Niño, Los Angeles and José stand in English headlines), so words
with a capital count a quarter, but for the first of a sentence. Where no word is known, endings and spelling
speak, and the way numbers are written (3,500 tickets, 3.500 millones, 2,5 %). No model; the same answer every time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..core.report import Report
from .languages import ARTICLES, COMMON, SPANISH_LETTERS, SURE, words_of

SURE_LEAD = 1.0
"""Evidence by which one language must lead to be sure: less than one plain word says nothing."""
_FUNCTION, _KNOWN, _SPELLING, _ENDING, _NAME, _SPANISH_NAME = 2.0, 1.5, 1.0, 0.7, 0.5, 0.2
_SHARED = frozenset("son era sin hay con as un al mi he has dice mundo si o e u presidente".split())
"""Words of the lists that the other language has too, as a word or in names."""
_NEWS = {
    "en": frozenset(
        """says wins win won beat beats score scores goals return returns hit hits raise sold sells buy buys rise rises rose
        fell fall falls die dies killed cut cuts plan plans open opens close closes lose loses lost take takes make makes
        made get gets go goes back down near next two three million billion percent share shares stocks oil police court
        house bill vote votes fire storm rain snow deal talks trade tax taxes bank jobs home team cup race final star king
        queen president mayor minister crash crime death deaths war peace strike snap pass passes leads lead leave leaves
        face faces call calls ask asks set sets end ends start starts keep keeps show shows pay pays job higher lower
        against past twice one four five six seven eight nine ten points record late early cases tickets names me
        """.split()
    ),
    "es": frozenset(
        """sube suben baja bajan gana ganan gano pierde pierden cae caen crece crecen vende venden compra compran anuncia
        anuncian dimite muere mueren abre abren cierra cierran vuelve vuelven regresa regresan llega llegan lanza lanzan
        pide piden visita gobierno millones millón euros euro dólares bolsa ley paro precio precios luz lluvia lluvias
        nieve calor frío temporal incendio guerra paz policía juez jueza jueces acuerdo cumbre huelga partido goles gol
        equipo liga copa alcalde alcaldesa ministro ministra rey reina empresa empresas banco bancos ventas récord muertos
        heridos casos vota votan aprueba rechaza firma niega acusa detenido detenidos juega juegan marca vence vencen
        empata empatan lidera supera superan rebaja prohíbe dos tres cuatro cinco seis siete ocho nueve diez mil mejor
        peor nuevo nueva nuevos nuevas primer primera entrevista conmemora celebra celebran queda quedan cumple cumplen entrega entregan demanda demandan""".split()
    ),
}
"""Words of headlines, which often have no function word at all."""
_PARTICLES = frozenset("de del la las los y e of the and".split())
_EN_SPELLING = re.compile(
    r"[kw]|th|sh|gh|ph|oo|ee|([bdfgmpstz])\1|[^aeiounsrlzdyáéíóúñ]$|[^aeiouáéíóú]s$|ing$|[^aeiou]ed$|[^aoeu]y$|tion"
)
_ES_SPELLING = re.compile(
    r"(?:ci[óo]n|ciones|siones|dad|dades|mente|ando|iendo|aron|ieron|ados?|adas?|idos?|illones)$"
)
_ES_ENDING = re.compile(r".{2,}[ao]s?$")
_BOTH = frozenset(
    """volcano video videos casino casinos radio studio studios photo photos zero hero memo logo data media area areas
    idea ideas drama dramas camera cameras pizza extra agenda via gas bus plus also perhaps whereas christmas piano solo""".split()
)
"""English words that end as Spanish ones do."""
_NUMBERS = tuple(
    (re.compile(pattern), language, weight)
    for pattern, language, weight in (
        (r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", "en", 1.0),
        (r"(?<![\d.,])\d{1,3}(?:\.\d{3})+(?![\d.])", "es", 1.0),
        (r"\d\.\d{1,2}\s?%", "en", 1.0),
        (r"\d,\d{1,2}\s?%", "es", 1.0),
        (r"\d\s%|\d\s€", "es", 0.5),
        (r"[$€£]\d", "en", 0.5),
        (r"\d(?:st|nd|rd|th)\b", "en", 2.0),
        (r"\d\.?[ºª]|\b[nN]\.?[ºª]", "es", 2.0),
        (r"[¿¡]", "es", 2.0),
        (r"«", "es", 0.5),
    )
)


@dataclass(frozen=True)
class Detected:
    """The language of a text, and the evidence for each."""

    language: str
    english: float
    spanish: float

    @property
    def sure(self) -> bool:
        return abs(self.english - self.spanish) >= SURE_LEAD

    def warning(self) -> str | None:
        """Return what a user should know about a weak guess, None if it is none."""
        if self.sure:
            return None
        name = {"en": "English", "es": "Spanish"}[self.language]
        return (
            f"the language was taken for {name} on weak evidence (English {self.english:g}, Spanish {self.spanish:g}): "
            "numbers such as 3,500 and 3.500 depend on it; choose en or es if it is wrong"
        )

    def __str__(self) -> str:
        return f"{self.language} (recognised: English {self.english:.3g}, Spanish {self.spanish:.3g})"


def detect(text: str, default: str = "en") -> Detected:
    """Return the language of `text`; `default` ("en" or "es") where neither leads by more than a name."""
    score = word_evidence(text)
    for pattern, language, weight in _NUMBERS:
        score[language] += weight * len(pattern.findall(text))
    lead = abs(score["en"] - score["es"])
    found = default if lead < _NAME else max(score, key=score.__getitem__)
    return Detected(found, round(score["en"], 2), round(score["es"], 2))


def language_of(text: str, language: str, report: Report | None = None, default: str = "en") -> str:
    """Return `language`, or what "auto" finds; the report is told what was taken, with a warning for a weak guess."""
    if language != "auto":
        return language
    found = detect(text, default)
    if report is not None:
        report.fact("language", str(found))
        if found.warning():
            report.warn(found.warning())
    return found.language


def word_evidence(text: str) -> dict[str, float]:
    """Return the evidence of the words of `text` for each language."""
    score = {"en": 0.0, "es": 0.0}
    for _, language, weight in outweighed(text, list(weighed_words(text))):
        score[language] += weight
    return score


_QUOTED = re.compile(r"[\"“«„][^\"“”«»„]*[\"”»“]")
_ASIDE = 0.1
"""What a word in a quotation weighs when words around it speak: a Spanish report may quote English."""


def outweighed(text: str, words: list[tuple[re.Match, str, float]]) -> list[tuple[re.Match, str, float]]:
    """Return the weighed words of `text`, those in quotations lighter if at least two words outside tell something."""
    quotes = [m.span() for m in _QUOTED.finditer(text)]
    inside = [any(a <= w.start() < b for a, b in quotes) for w, _, _ in words]
    if not any(inside) or inside.count(False) < 2:
        return words
    return [
        (word, language, weight * _ASIDE if quoted else weight)
        for (word, language, weight), quoted in zip(words, inside, strict=True)
    ]


def weighed_words(text: str) -> Iterator[tuple[re.Match, str, float]]:
    """Yield (word, language, weight) for the words of `text` that tell something."""
    words = list(words_of(text))
    shouted = not any(c.islower() for w in words for c in w[0])
    for i, word in enumerate(words):
        before = words[i - 1] if i else None
        gap = text[before.end() : word.start()] if before else "."
        first = bool(re.search(r"[.!?:…\n]", gap))
        named = not first and before[0][0].isupper() and before[0].lower() not in COMMON["en"]
        # "de la Cruz", "de los Muertos": what the particles lead to is what counts
        after = next((w[0] for w in words[i + 1 : i + 3] if w[0].lower() not in ("la", "los", "las")), "")
        if len(word[0]) == 1 and re.search(r"[/&.-]", text[max(0, word.start() - 1) : word.end() + 1]):
            continue  # y/y, R&D
        near = _Near(first, named and not shouted, after[:1].isupper() and not shouted)
        short = len(word[0]) < 5 and (shouted or text[word.end() : word.end() + 1] == ".")  # BBVA, fig.
        found = _weigh(word[0], word[0][0].isupper() and not shouted, near, short)
        if found is not None:
            yield word, *found


@dataclass(frozen=True)
class _Near:
    """Where a word stands: first in its sentence, behind a name, before one."""

    first: bool
    after_name: bool
    before_name: bool


def _weigh(word: str, capital: bool, near: _Near, short: bool) -> tuple[str, float] | None:
    """Return the language a word speaks for and how much, None for a name or a word of neither."""
    lower = word.lower().replace("’", "'")
    for language in ("en", "es"):
        if lower in COMMON[language]:
            return language, _function_weight(lower, capital, near)
    if re.search(r"n't$|'(?:re|ve|ll)$", lower) or (not capital and re.search(r"'(?:s|t|d|m)$", lower)):
        return "en", _FUNCTION
    for language in ("en", "es"):
        if lower in _NEWS[language]:
            return language, _KNOWN if not capital else _SPELLING if near.first else _NAME / 2
    if capital:
        if SPANISH_LETTERS.search(lower):
            return "es", _SPANISH_NAME
        return ("en", _NAME) if lower.endswith("'s") else None
    return None if short else _spelling(lower)


def _spelling(word: str) -> tuple[str, float] | None:
    """Return what letters and endings of a word in lower case say."""
    if SPANISH_LETTERS.search(word):
        return "es", _SPELLING
    if len(word) > 2 and _EN_SPELLING.search(word):
        return "en", _SPELLING
    if _ES_SPELLING.search(word):
        return "es", _SPELLING
    return ("es", _ENDING) if _ES_ENDING.match(word) and word not in _BOTH else None


def _function_weight(word: str, capital: bool, near: _Near) -> float:
    if word in _SHARED:
        return _NAME if capital else _SPELLING
    if capital and word in SURE["en"] - ARTICLES:  # Monday, June: always with a capital
        return _NAME if near.after_name else _FUNCTION
    if capital:
        return _FUNCTION if near.first and not near.before_name else _NAME
    return _NAME if near.before_name and word in _PARTICLES else _FUNCTION
