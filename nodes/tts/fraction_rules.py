"""Rules for fractions, for what only looks like one, and for powers."""

from __future__ import annotations

import re

from .languages import Locale
from .numbers import cardinal, noun_gender, number, number_pattern, ordinal, split_number
from .rules import Rule, left_of, right_of, rule
from .units import UNITS

_FRACTIONS_ES = {
    2: "medio",
    3: "tercio",
    4: "cuarto",
    5: "quinto",
    6: "sexto",
    7: "séptimo",
    8: "octavo",
    9: "noveno",
}
_VULGAR = {
    "½": (1, 2),
    "⅓": (1, 3),
    "⅔": (2, 3),
    "¼": (1, 4),
    "¾": (3, 4),
    "⅕": (1, 5),
    "⅖": (2, 5),
    "⅛": (1, 8),
    "⅜": (3, 8),
}
_PRESSURE = r"\b(?:BP|pressure|[Tt]ensión|[Pp]resión)(?:\s\w+){0,2}:?\s$"
_ODDS = r"\b(?:odds|favou?rite|outsider|bookmakers?|long shot)\b"


def fraction_rules(locale: Locale) -> list[Rule]:
    """Return the rules for fractions (3/4, 2½) and for what only looks like one (24/7, 9/11)."""

    def plain(match: re.Match) -> str | None:
        top, bottom = int(match["top"]), int(match["bottom"])
        return _mixed(match["whole"] or "", top, bottom, locale) if 0 < top < bottom else None

    def sign(match: re.Match) -> str | None:
        top, bottom = _VULGAR[match["sign"]]
        return _mixed(match["whole"] or "", top, bottom, locale)

    def slashed(match: re.Match) -> str:
        if re.search(_PRESSURE, left_of(match)):
            return locale.pick(" over ", " sobre ").join(cardinal(int(n), locale) for n in match.groups())
        odds = not locale.is_es and re.search(_ODDS, left_of(match) + right_of(match))
        return (" to " if odds else " ").join(cardinal(int(n), locale) for n in match.groups())

    name, reason = "fraction", "a fraction in words"
    signs = "".join(_VULGAR)
    halves = rule(
        name,
        reason,
        r"(?<![\w.,/])(?P<whole>\d{1,3})?(?P<half>\s?½|(?<=\d)\s1/2|(?<![\d/])1/2)\s(?P<noun>[a-záéíóúñ]+)",
        lambda m: _with_noun(m, locale),
    )
    return [
        *([halves] if locale.is_es else []),
        rule(
            "range",
            "a word stands for the sign",
            rf"(?<=[{signs}%])\s?[-–]\s?(?=\d)",
            lambda m: locale.pick(" to ", " a "),
        ),
        rule(name, reason, r"(?<![\w.,/])(?P<whole>)(?P<top>[2-9])/(?P<bottom>[3-9])(?:ths|rds)\b", plain),
        rule(
            name,
            reason,
            r"(?<![\w.,/])(?:(?P<whole>\d{1,3})\s)?(?P<top>\d)/(?P<bottom>[2-9]|10)(?![\w/]|[.,]\d)",
            plain,
        ),
        rule(name, reason, rf"(?<![\w.,/])(?P<whole>\d{{1,3}})?\s?(?P<sign>[{signs}])", sign),
        rule(name, "two numbers, no fraction", r"(?<![\w.,/])(\d{1,3})/(\d{1,3})(?![\w/]|[.,]\d)", slashed),
    ]


def _words(top: int, bottom: int, locale: Locale) -> str | None:
    """Return a fraction in words, None for one that has no name of its own (3/2)."""
    if not locale.is_es:
        if bottom == 2:
            return "one half" if top == 1 else None
        unit = {4: "quarter"}.get(bottom) or ordinal(bottom, locale)
        return f"{cardinal(top, locale)} {unit}{'' if top == 1 else 's'}"
    unit = _FRACTIONS_ES.get(bottom, "décimo")
    return f"{cardinal(top, locale, 'm')} {unit}{'' if top == 1 else 's'}"


def _mixed(whole: str, top: int, bottom: int, locale: Locale) -> str | None:
    """Return a whole number and a fraction: two and a half, dos y medio."""
    spoken = _words(top, bottom, locale)
    if spoken is None:
        return None
    if not whole:
        return spoken
    if not locale.is_es:
        spoken = spoken.replace("one half", "a half")
        return f"{cardinal(int(whole), locale)} and {spoken}"
    spoken = spoken.replace("un medio", "medio")
    return f"{cardinal(int(whole), locale)} y {spoken}"


def _with_noun(match: re.Match, locale: Locale) -> str | None:
    """Spanish puts the half after the noun: dos horas y media, un kilo y medio; alone it is media hora."""
    whole, noun = match["whole"], match["noun"]
    unit = UNITS.get(noun)
    gender = unit.gender if unit else noun_gender(match.string, match.end("half"))
    if gender == "n":
        return None
    half = "media" if gender == "f" else "medio"
    if not whole:
        return f"{half} {unit.one(locale) if unit else noun}"
    if unit:
        noun = unit.one(locale) if whole == "1" else unit.many(locale)
    return f"{cardinal(int(whole), locale, gender)} {noun} y {half}"


_EXPONENT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def power_rules(locale: Locale) -> list[Rule]:
    """Return the rules for 3.2×10⁵, 10^-3 and 5²."""
    n = number_pattern(locale)

    def power(match: re.Match) -> str:
        exponent = int(match["exp"].translate(_EXPONENT).lstrip("^").replace("−", "-"))
        ten = locale.pick("ten to the power of ", "diez elevado a ") + cardinal(exponent, locale)
        if not match["a"]:
            return ten
        return f"{number(*split_number(match['a'], locale), locale)} {locale.pick('times', 'por')} {ten}"

    def raised(match: re.Match) -> str:
        two = match["exp"] == "²"
        return f"{number(*split_number(match['a'], locale), locale)} " + (
            locale.pick("squared", "al cuadrado") if two else locale.pick("cubed", "al cubo")
        )

    def base(match: re.Match) -> str:
        words = number(*split_number(match["a"], locale), locale)
        exponent = int(match["exp"].replace("−", "-"))
        return f"{words} {locale.pick('to the power of', 'elevado a')} {cardinal(exponent, locale)}"

    def scientific(match: re.Match) -> str:
        words = number(*split_number(match["a"], locale), locale)
        ten = locale.pick("times ten to the power of", "por diez elevado a")
        return f"{words} {ten} {cardinal(int(match['exp']), locale)}"

    reason = "a power in words"
    exponent = r"(?P<exp>⁻?[⁰¹²³⁴-⁹]+|\^[-−]?\d{1,3})"
    return [
        rule("power", reason, rf"(?<![\w.,])(?:(?P<a>{n})\s?[×x·]\s?)?10{exponent}(?!\w)", power),
        rule("power", reason, rf"(?<![\w.,])(?P<a>{n})(?P<exp>[²³])(?!\w)", raised),
        rule("power", reason, rf"(?<![\w.,])(?P<a>{n})\^(?P<exp>[-−]?\d{{1,3}})(?!\w)", base),
        rule("power", reason, r"(?<![\w.,])(?P<a>\d(?:[.,]\d+)?)[eE](?P<exp>[-+]?\d{1,3})(?!\w)", scientific),
        rule("product", reason, r"(?<=\d)\s?\*\s?(?=\d)", lambda m: locale.pick(" times ", " por ")),
        rule(
            "root", reason, r"√\s?(?=\d)", lambda m: locale.pick("the square root of ", "raíz cuadrada de ")
        ),
    ]
