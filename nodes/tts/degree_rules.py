"""Rules for degrees: 40C, from 5C, 5-10C, and Spanish degrees that are written with the sign of an ordinal (12º)."""

from __future__ import annotations

import re

from .amount_rules import DASH, amount, quantity
from .languages import COMMON, Locale
from .rules import Rule, left_of, right_of, rule
from .units import UNITS

_WEATHER = re.compile(
    r"\b(?:m[áa]xim[ao]s?|m[íi]nim[ao]s?|máx\.|mín\.|temperaturas?|term[óo]metros?|grados|mercurio|calor|fr[íi]o"
    r"|fresco|heladas?|bochorno|sensación térmica|ola de|fiebre|°|bajo cero|tendremos|tendrán|habrá|hará|haremos|subirán?|bajarán?"
    r"|marcarán?|registr[a-zó]+|giró|girar|ángulos?|latitud|longitud|inclin[a-zó]+)",
    re.IGNORECASE,
)
_SURE = re.compile(r"[-−]\d+º|\d[.,]\d+º|\dº\s?[CF](?!\w)")
"""Another number of the sentence that can only be degrees."""
_SINGULAR = re.compile(
    r"\b(?:el|la|del|al|un|una|su|mi|tu|este|esta|ese|esa|cada|nuestro|nuestra)\s$", re.IGNORECASE
)
_PLACED = re.compile(
    r"\b(?:qued[a-zóé]+|acab[a-zóé]+|termin[a-zóé]+|finaliz[a-zóé]+|fue|es|va|marcha|entr[a-zóé]+|cruz[a-zóé]+"
    r"|clasific[a-zóé]+|lleg[a-zóé]+)\s$",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"\b(?:a|de|hasta|los|unos|casi|entre|con|sobre|bajo|superar[a-zó]*|super[aó]n?|roz[a-zó]+|alcanz[a-zó]+)\s$",
    re.IGNORECASE,
)
_CITY = r"\s+en\s+[A-ZÁÉÍÓÚÑ]"
_LARGEST = 31
"""Bare ordinals beyond it are rare in news; 32º and more without a noun are degrees."""


_SIDES = {"N": "norte", "S": "sur", "E": "este", "O": "oeste"}


def _is_degrees(match: re.Match) -> bool:
    """Return whether a Spanish 12º is twelve degrees, by its sign, its size and the words around it."""
    number, before, after = match["a"], left_of(match), right_of(match)
    value = int(re.split("[.,]", number)[0])
    if match["sign"] or match["scale"] or not number.isdigit() or value == 0:
        return True
    if match["side"] or match["b"]:
        return True
    if re.match(
        r"\s+de\s+(?:máxima|mínima|temperatura|sensación|inclinación|latitud|longitud|ángulo|fiebre)\b", after
    ):
        return True
    if _SINGULAR.search(before) or re.match(r"\s+de\b", after):  # el 2º piso, 2º de Bachillerato
        return False
    around = before + after
    forecast = bool(_WEATHER.search(around) or _SURE.search(around))
    noun = re.match(r"\s+([^\W\d_]+)", after)
    if noun and noun[1].lower() not in COMMON["es"] | _FOLLOWING and not forecast:
        return False  # 20º aniversario
    if forecast or value > _LARGEST or value > 9 and not around.strip(" .\n"):
        return True
    if _PLACED.search(before):
        return False
    return value > 3 and bool(_BEFORE.search(before) or re.match(_CITY, after))


_FOLLOWING = frozenset("ayer hoy anoche mañana esta este a de y o en por durante al como".split())


def degree_rules(locale: Locale) -> list[Rule]:
    """Return the rules for temperatures; a 5C without a sign or a word before it is a name."""

    def warm(match: re.Match) -> str:
        low, high = (amount(match[i], None, locale).words for i in ("a", "b"))
        return f"{low} {locale.pick('to', 'a')} {high} {UNITS['°' + match['unit']].many(locale)}"

    def degrees(match: re.Match) -> str:
        return quantity(match["a"], f"°{match['unit']}", locale, match["sign"])

    def ordinal_sign(match: re.Match) -> str | None:
        if locale.is_es and not _is_degrees(match):
            return None
        side = f" {_SIDES[match['side']]}" if match["side"] else ""
        if not match["b"]:
            return quantity(match["a"], f"°{match['scale'] or ''}", locale, match["sign"]) + side
        first = quantity(match["a"], "°", locale, match["sign"]).rpartition(" ")[0]
        return (
            f"{first} {locale.pick('to', 'a')} {quantity(match['b'], '°' + (match['scale'] or ''), locale)}"
        )

    def angle(match: re.Match) -> str:
        parts = [(match["degrees"], "degree", "grado"), (match["minutes"], "minute", "minuto")]
        parts += [(match["seconds"], "second", "segundo")] if match["seconds"] else []
        return " ".join(
            f"{amount(n, None, locale, 'm').words} {locale.pick(en, es)}{'' if int(n) == 1 else 's'}"
            for n, en, es in parts
        )

    name, reason = "U2 unit", "the unit in words"
    angles = r"(?<![\w.,])(?P<degrees>\d{1,3})\s?[°º]\s?(?P<minutes>[0-5]?\d)\s?['’′](?:\s?(?P<seconds>[0-5]?\d)\s?[\"”″])?"
    scale = "C" if locale.is_es else "[CF]"
    words = ("de", "a", "hasta") if locale.is_es else ("from", "to", "of", "below", "above", "near")
    behind = "|".join(rf"(?<=\b{word} )" for word in words)
    sign = (
        rf"(?<![\w.,])(?P<sign>[-−])?(?P<a>\d{{1,3}}(?:[.,]\d)?)(?:º?{DASH}(?P<b>\d{{1,3}}))?\s?º"
        rf"(?:\s?(?P<scale>[CF])(?!\w)|\s?(?P<side>[NSEO])(?!\w))?(?!\w)"
    )
    return [
        rule(name, reason, angles, angle),
        rule(name, reason, sign, ordinal_sign),
        rule(
            name, reason, rf"(?<![\w.,])(?P<a>\d{{1,3}}){DASH}(?P<b>\d{{2,3}})(?P<unit>{scale})(?!\w)", warm
        ),
        rule(name, reason, rf"(?<![\w.,])(?P<sign>[-−])?(?P<a>\d{{2,3}})(?P<unit>{scale})(?!\w)", degrees),
        rule(name, reason, rf"(?:{behind})(?P<sign>)(?P<a>\d)(?P<unit>C)(?!\w)", degrees),
        rule(name, reason, r"(?<![\w.,])(?P<sign>[-−])(?P<a>\d)(?P<unit>C)(?!\w)", degrees),
    ]
