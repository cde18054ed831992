"""Rules for ranges, scores, sizes, years and every other number."""

from __future__ import annotations

import re

from .amount_rules import sign_words
from .languages import Locale
from .numbers import (
    cardinal,
    noun_gender,
    number,
    number_pattern,
    split_number,
    year,
)
from .rules import Rule, joint, left_of, right_of, rule
from .years import is_year

_SECTION = (
    r"(?:\b(?:[Aa]rt(?:ículo)?s?\.?|[Aa]partado|[Ss]ección|[Vv]ersión|[Cc]apítulo|[Ff]igura|[Tt]abla|iOS|Android|HDMI|USB|Windows"
    r"|Bluetooth|GPT|Python)[\s-]|\bv\.?\s?)$"
)


def between_rules(locale: Locale) -> list[Rule]:
    """Return the rules for two numbers with a sign between: ranges, scores, seasons, ratios, sizes, versions."""
    n = number_pattern(locale)
    to = locale.pick("to", "a")

    def one(text: str, gender: str = "n") -> str:
        return number(*split_number(text, locale), locale, gender)

    def span(match: re.Match) -> str:
        first, second = match["a"], match["b"]
        if all(re.fullmatch(r"(?:1[1-9]|20)\d\d", x) for x in (first, second)):
            return f"{year(int(first), locale)} {joint(match, locale)} {year(int(second), locale)}"
        if not locale.is_es and re.fullmatch(r"(?:1[1-9]|20)\d\d", first) and re.fullmatch(r"\d\d", second):
            return f"{year(int(first), locale)} to {year(int(first[:2] + second), locale)}"
        if locale.is_es and re.fullmatch(r"20\d\d", first) and second == f"{int(first) + 1}"[2:]:
            return f"{year(int(first), locale)} {cardinal(int(second), locale)}"  # a season
        if first == second == "50":
            return locale.pick("fifty-fifty", "cincuenta cincuenta")
        gender = noun_gender(match.string, match.end()) if locale.is_es else "n"
        return f"{one(first, gender)} {joint(match, locale)} {one(second, gender)}"

    def season(match: re.Match) -> str:
        return f"{year(int(match[1]), locale)} {cardinal(int(match[2]), locale)}"

    def version(match: re.Match) -> str:
        return locale.pick(" point ", " punto ").join(cardinal(int(p), locale) for p in match[0].split("."))

    def ratio(match: re.Match) -> str:
        if re.search(r"\b(?:in|of|at|en|de|con)\s$", left_of(match)) and re.fullmatch(r"[0-5]\d", match[2]):
            zero = locale.pick("oh ", "cero ") if match[2][0] == "0" else ""  # he scored in 32:15
            return f"{cardinal(int(match[1]), locale)} {zero}{cardinal(int(match[2]), locale)}"
        return f"{one(match[1])} {to} {one(match[2])}"

    def product(match: re.Match) -> str:
        return f"{one(match['a'])} {locale.pick('by', 'por')} {one(match['b'])}"

    word = "a word stands for the sign between two numbers"
    versions = r"(?<![\w.,])\d{1,3}(?:\.\d{1,2}){2,}(?![\w]|[.,]\d)"
    spans = rf"(?<![\w.,-])(?P<a>{n})\s?[-–]\s?(?P<b>{n})(?![\w-]|[.,]\d)"
    products = rf"(?<![\w.,])(?P<a>{n})\s?[x×]\s?(?P<b>{n})(?!\w)"

    return [
        *(_spanish_numbers(locale) if locale.is_es else []),
        rule("season", "two years", r"(?<![\w.,/])((?:19|20)\d\d)/(\d\d)(?![\w/]|[.,]\d)", season),
        rule("version", "every part of it as a number", versions, version),
        rule("range", word, spans, span),
        rule(
            "ratio", word, r"(?<![\w:.,])(\d{1,3}(?:[.,]\d{1,2})?):(\d{1,3}(?:[.,]\d{1,2})?)(?![\w:])", ratio
        ),
        rule("product", word, products, product),
    ]


def _spanish_numbers(locale: Locale) -> list[Rule]:
    """Return the rules for laws (Ley 39/2015) and for points that are no decimal mark (art. 47.1)."""

    def section(match: re.Match) -> str | None:
        if not re.search(_SECTION, left_of(match)):
            return None
        return " punto ".join(number(part, "", locale) for part in match[0].split("."))

    def law(match: re.Match) -> str:
        word = {"LO": "Ley Orgánica", "RD": "Real Decreto", "RDL": "Real Decreto Ley"}.get(
            match["word"], match["word"]
        )
        return f"{word} {cardinal(int(match['n']), locale)} de {year(int(match['year']), locale)}"

    laws = (
        r"(?P<word>\b(?:[Ll]ey|Ley Orgánica|[Dd]ecreto|[Oo]rden|[Dd]irectiva|[Rr]eglamento|[Ss]entencia|LO|RD|RDL))"
        r"\s(?P<n>\d{1,4})/(?P<year>(?:19|20)\d\d)(?!\w|[.,/]\d)"
    )
    points = r"(?<![\w.,])\d{1,3}\.\d{1,2}(?![\w%]|[.,]\d)"
    return [
        rule("law", "number and year of a law", laws, law),
        rule("version", "a point, no decimal mark", points, section),
    ]


def plain_rules(locale: Locale) -> list[Rule]:
    """Return the rules for years and every other number."""
    n = number_pattern(locale)

    def plain(match: re.Match) -> str:
        if not match["sign"] and not locale.is_es and is_year(match):
            return year(int(match["n"]), locale)
        gender = noun_gender(match.string, match.end("n")) if locale.is_es else "n"
        digits = match["n"]
        if re.fullmatch(r"[1-9]\d{0,2}[.,]\d{3}", digits) and (
            re.match(_COUNTED, right_of(match, "n")) or (locale.is_es and digits.endswith("000"))
        ):
            digits = re.sub("[.,]", "", digits)  # 3,500 personas: nobody counts parts of people
        return sign_words(match["sign"], locale) + number(*split_number(digits, locale), locale, gender)

    def bare(match: re.Match) -> str:
        return number("0", match["n"], locale).partition(" ")[2]

    def hundreds(match: re.Match) -> str:
        return {"100": "hundreds", "1000": "thousands"}[match["n"]]

    reason = "a number in words"
    return [
        *([] if locale.is_es else [rule("number", reason, r"(?<![\w.,$€£])(?P<n>1000?)s\b", hundreds)]),
        rule("number", reason, rf"(?<![\w.,])(?P<sign>(?<!\d\s)[-−+])?(?P<n>{n})(?!\w|[.,]\d)", plain),
        rule("number", reason, r"(?<![\w.,])[.,](?P<n>\d+)", bare),
        rule("number", reason, rf"(?P<sign>)(?P<n>{n})", plain),
        rule("number", reason, r"(?P<sign>)(?P<n>\d+)", plain),
    ]


_COUNTED = (
    r"\s(?:people|votes|tickets|jobs|deaths|homes|troops|soldiers|workers|fans|seats|personas|habitantes|muertos|heridos|votos"
    r"|empleos|familias|viviendas|soldados|migrantes|detenidos|entradas|boletos|asistentes|trabajadores|vecinos|aficionados)\b"
)
"""Nouns that come in whole numbers: a mark before three digits groups, whoever wrote it."""
