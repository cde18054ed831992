"""The languages the text rules know, their ways to write numbers, and which words of a text are in which.

A span that is recognised wrongly (detection.py) can be marked with [lang:en]...[/lang].
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LANGUAGES = ("en", "es")
_POINT_COUNTRIES = frozenset({"419", "MX", "US", "PR", "DO", "GT", "HN", "NI", "PA", "SV", "PE"})
"""Spanish with a decimal point: Mexico, Central America, the Caribbean, and the CLDR's es-419."""

_PESO_COUNTRIES = frozenset({"MX", "AR", "CL", "CO", "UY", "CU", "DO"})
"""Spanish where "$" is the peso; elsewhere in the Americas it is the dollar."""


@dataclass(frozen=True)
class Locale:
    """How a language is written in one place.

    decimal is "." or ","; day_first orders 3/4/2025; british puts "and" after hundreds; american (Spanish of the
    Americas) says "primero de mayo" and "centavos"; peso says that "$" is a peso.
    """

    tag: str
    language: str
    decimal: str
    day_first: bool
    british: bool = False
    american: bool = False
    peso: bool = False

    @property
    def is_es(self) -> bool:
        return self.language == "es"

    def pick(self, en: str, es: str) -> str:
        return es if self.language == "es" else en


def find_locale(tag: str) -> Locale:
    """Return the locale of a tag such as "en", "en-GB", "es" or "es_MX"; ValueError naming what is known."""
    language, _, region = tag.replace("_", "-").partition("-")
    language, region = language.lower(), region.upper()
    if language == "en":
        us = region in ("", "US")
        return Locale(tag, "en", ".", day_first=not us, british=not us)
    if language == "es":
        american = region not in ("", "ES")
        decimal = "." if region in _POINT_COUNTRIES else ","
        return Locale(tag, "es", decimal, True, american=american, peso=region in _PESO_COUNTRIES)
    raise ValueError(
        f"language {tag!r} has no text rules; use one of {', '.join(LANGUAGES)} (with a country if it matters: "
        "en-GB, es-MX), or auto"
    )


def sibling(locale: Locale, language: str) -> Locale:
    """Return the locale for a span in `language` inside a text in `locale`."""
    return locale if language == locale.language else find_locale(language)


COMMON = {
    "en": frozenset(
        """the of and is are was were with for from that this these those has have had will would by at on in it its
        he she they we you his her their our your an as be been not but or which who what when where why how than
        then there here about into over after before between under again more most some any all can could should
        may might must do does did said says say new news first today tomorrow yesterday year years people market
        markets breaking live good morning evening night hello thanks thank please yes game world week month time
        monday tuesday wednesday thursday friday saturday sunday january february march april june july august
        september october november december to up out if so just like only also because while during until""".split()
    ),
    "es": frozenset(
        """el la los las de del que y en un una unos unas es son fue era por para con se su sus al lo como más pero
        sin sobre entre hasta desde ya muy también este esta estos estas ese esa eso nos les le mi tu si sí cuando
        donde quien quienes porque según hoy ayer mañana año años hay ha han había ser está están tiene tienen
        hace día días mes semana noticias última hora buenos buenas tardes noches gracias señor señora mundo
        lunes martes miércoles jueves viernes sábado domingo enero febrero marzo abril mayo junio julio agosto
        septiembre octubre noviembre diciembre dijo dice gobierno presidente ni o u e cada todo todos toda todas
        otro otra otros otras qué cómo cuál cuándo dónde quién esto ante tras durante mientras aunque""".split()
    ),
}
"""Frequent words that the other language does not have."""

PLAIN = {
    "en": COMMON["en"]
    | frozenset(
        """no yes not now all new one two any why how who let get got go do ok off out big bad top war man day end
        own ever never only very must free live best stop will just again maybe absolutely nothing everything""".split()
    ),
    "es": COMMON["es"]
    | frozenset(
        """sí no nunca jamás muy dos tres uno fin gran paz ley rey mal bien nada solo alto ojo a de él ella ellos
        ellas yo nosotros quizá tal vez claro""".split()
    ),
}
"""Frequent words, shared ones too: no names, and no initialisms when they stand in capitals."""

FUNCTION_EN = frozenset(
    """the of and is are was were with for from that this these those has have had will would by at on it its he she
    they we you his her their our your an a as be been not but or which who when where how than then there here
    about into over after before during between under again more most all can could should may might must do does
    did to up down out off if so just like only also because while until per i in under above below""".split()
)
"""English words that no noun phrase goes on with."""

SURE = {
    "en": frozenset(
        """monday tuesday wednesday thursday friday saturday sunday january february june july august september
        october november december the breaking yesterday tomorrow with which""".split()
    ),
    "es": frozenset(
        """lunes martes miércoles jueves viernes sábado domingo enero febrero marzo abril junio julio agosto
        septiembre octubre noviembre diciembre mañana ayer según está año años señor""".split()
    ),
}
"""Words that make a span on their own. Brand-like ones ("the", as in The Beatles) need a neighbour: see spans.py."""

ARTICLES = frozenset({"the", "with", "which"})
"""Those of them that brands have."""

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
SPANISH_LETTERS = re.compile(r"[ñáéíóúü¿¡]", re.IGNORECASE)
_TAG = re.compile(r"\[[^\]\n]*\]")


def words_of(text: str) -> Iterator[re.Match]:
    """Yield the words of a text, those in tags left out."""
    yield from _WORD.finditer(_TAG.sub(lambda m: " " * len(m[0]), text))
