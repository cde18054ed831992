"""Rules for fractions, ranges, scores, sizes, years and every other number."""

from __future__ import annotations

import re

from .amount_rules import sign_words
from .languages import Locale
from .numbers import (
    cardinal,
    noun_gender,
    number,
    number_pattern,
    ordinal,
    split_number,
    year,
)
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
_YEAR_BEFORE = (
    r"(?i:\b(?:in|since|by|from|until|till|of|during|before|after|year|years|early|late|mid|spring|summer|autumn|fall"
    r"|winter|through|circa|class of|back in|between|fiscal|for|around|the|[qh][1-4]|fy|pre|post|born|died|founded|built|elected|published|released)[\s-]|\()$"
)
_YEAR_NOT = r"\s(?:people|votes|jobs|points|miles|dollars|troops|soldiers|homes|tons|deaths|cases|feet|meters|euros)\b"
_YEAR_AFTER = (
    r"(?:\s(?:was|were|is|will|saw|had|has|season|election|elections|budget|World|Olympics|Olympic|report|model"
    r"|campaign|edition|film|study|Games|census|crash|crisis|election|vote|tax|fiscal)\b|[-–]\d|\)|,?\s(?:he|she|it|they|we|the)\b)"
)


def fraction_rules(locale: Locale) -> list[Rule]:
    """Return the rules for fractions (3/4, 2½) and for what only looks like one (24/7, 9/11)."""

    def words(top: int, bottom: int) -> str | None:
        if not locale.is_es:
            if bottom == 2:
                return "one half" if top == 1 else None
            unit = {4: "quarter"}.get(bottom) or ordinal(bottom, locale)
            return f"{cardinal(top, locale)} {unit}{'' if top == 1 else 's'}"
        unit = _FRACTIONS_ES.get(bottom, "décimo")
        return f"{cardinal(top, locale, 'm')} {unit}{'' if top == 1 else 's'}"

    def mixed(whole: str, top: int, bottom: int) -> str | None:
        spoken = words(top, bottom)
        if spoken is None:
            return None
        if not whole:
            return spoken
        if not locale.is_es:
            spoken = spoken.replace("one half", "a half")
            return f"{cardinal(int(whole), locale)} and {spoken}"
        spoken = spoken.replace("un medio", "medio")
        return f"{cardinal(int(whole), locale)} y {spoken}"

    def plain(match: re.Match) -> str | None:
        top, bottom = int(match["top"]), int(match["bottom"])
        return mixed(match["whole"] or "", top, bottom) if 0 < top < bottom else None

    def sign(match: re.Match) -> str | None:
        top, bottom = _VULGAR[match["sign"]]
        return mixed(match["whole"] or "", top, bottom)

    def with_noun(match: re.Match) -> str | None:
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

    def slashed(match: re.Match) -> str:
        return " ".join(cardinal(int(n), locale) for n in match.groups())

    name, reason = "fraction", "a fraction in words"
    signs = "".join(_VULGAR)
    halves = rule(
        name,
        reason,
        r"(?<![\w.,/])(?P<whole>\d{1,3})?(?P<half>\s?½|(?<=\d)\s1/2)\s(?P<noun>[a-záéíóúñ]+)",
        with_noun,
    )
    return [
        *([halves] if locale.is_es else []),
        rule(
            "range",
            "a word stands for the sign",
            rf"(?<=[{signs}%])\s?[-–]\s?(?=\d)",
            lambda m: locale.pick(" to ", " a "),
        ),
        rule(
            name,
            reason,
            r"(?<![\w.,/])(?:(?P<whole>\d{1,3})\s)?(?P<top>\d)/(?P<bottom>[2-9]|10)(?![\w/]|[.,]\d)",
            plain,
        ),
        rule(name, reason, rf"(?<![\w.,/])(?P<whole>\d{{1,3}})?\s?(?P<sign>[{signs}])", sign),
        rule(name, "two numbers, no fraction", r"(?<![\w.,/])(\d{1,3})/(\d{1,3})(?![\w/]|[.,]\d)", slashed),
    ]


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


def between_rules(locale: Locale) -> list[Rule]:
    """Return the rules for two numbers with a sign between: ranges, scores, seasons, ratios, sizes, versions."""
    n = number_pattern(locale)
    to = locale.pick("to", "a")

    def one(text: str, gender: str = "n") -> str:
        return number(*split_number(text, locale), locale, gender)

    def span(match: re.Match) -> str:
        first, second = match["a"], match["b"]
        if all(re.fullmatch(r"(?:1[1-9]|20)\d\d", x) for x in (first, second)):
            return f"{year(int(first), locale)} {to} {year(int(second), locale)}"
        if not locale.is_es and re.fullmatch(r"(?:1[1-9]|20)\d\d", first) and re.fullmatch(r"\d\d", second):
            return f"{year(int(first), locale)} to {year(int(first[:2] + second), locale)}"
        if first == second == "50":
            return locale.pick("fifty-fifty", "cincuenta cincuenta")
        gender = noun_gender(match.string, match.end()) if locale.is_es else "n"
        return f"{one(first, gender)} {to} {one(second, gender)}"

    def season(match: re.Match) -> str:
        return f"{year(int(match[1]), locale)} {cardinal(int(match[2]), locale)}"

    def version(match: re.Match) -> str:
        return locale.pick(" point ", " punto ").join(cardinal(int(p), locale) for p in match[0].split("."))

    def ratio(match: re.Match) -> str:
        return f"{cardinal(int(match[1]), locale)} {to} {cardinal(int(match[2]), locale)}"

    def product(match: re.Match) -> str:
        return f"{one(match['a'])} {locale.pick('by', 'por')} {one(match['b'])}"

    word = "a word stands for the sign between two numbers"
    versions = r"(?<![\w.,])\d{1,3}(?:\.\d{1,2}){2,}(?![\w]|[.,]\d)"
    spans = rf"(?<![\w.,-])(?P<a>{n})\s?[-–]\s?(?P<b>{n})(?![\w-]|[.,]\d)"
    products = rf"(?<![\w.,])(?P<a>{n})\s?[x×]\s?(?P<b>{n})(?!\w)"
    return [
        rule("season", "two years", r"(?<![\w.,/])((?:19|20)\d\d)/(\d\d)(?![\w/]|[.,]\d)", season),
        rule("version", "every part of it as a number", versions, version),
        rule("range", word, spans, span),
        rule("ratio", word, r"(?<![\w:.,])(\d{1,3}):(\d{1,3})(?![\w:])", ratio),
        rule("product", word, products, product),
    ]


def plain_rules(locale: Locale) -> list[Rule]:
    """Return the rules for years and every other number."""
    n = number_pattern(locale)

    def plain(match: re.Match) -> str:
        if not match["sign"] and not locale.is_es and _is_year(match):
            return year(int(match["n"]), locale)
        gender = noun_gender(match.string, match.end("n")) if locale.is_es else "n"
        return sign_words(match["sign"], locale) + number(*split_number(match["n"], locale), locale, gender)

    def bare(match: re.Match) -> str:
        return number("0", match["n"], locale).partition(" ")[2]

    def hundreds(match: re.Match) -> str:
        return {"100": "hundreds", "1000": "thousands"}[match["n"]]

    reason = "a number in words"
    return [
        *([] if locale.is_es else [rule("number", reason, r"(?<![\w.,$€£])(?P<n>1000?)s\b", hundreds)]),
        rule("number", reason, rf"(?<![\w.,])(?P<sign>(?<!\d\s)[-−+])?(?P<n>{n})(?![\w])", plain),
        rule("number", reason, r"(?<![\w.,])[.,](?P<n>\d+)", bare),
        rule("number", reason, rf"(?P<sign>)(?P<n>{n})", plain),
        rule("number", reason, r"(?P<sign>)(?P<n>\d+)", plain),
    ]


def _is_year(match: re.Match) -> bool:
    """Return whether four English digits are a year, by the words around them."""
    value = match["n"]
    if not re.fullmatch(r"1\d{3}|20\d\d", value) or re.match(_YEAR_NOT, right_of(match, "n")):
        return False
    return bool(re.search(_YEAR_BEFORE, left_of(match, "n")) or re.match(_YEAR_AFTER, right_of(match, "n")))
