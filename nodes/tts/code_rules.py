"""Rules for letters with digits: G7, F-16, COVID-19."""

from __future__ import annotations

import re

from .glossary import Glossary
from .languages import Locale
from .numbers import cardinal, digit_words, year
from .rules import Rule, left_of, rule

_CODE_BEFORE = r"\b(?:Boeing|Flight|Route|Highway|Airbus|Lufthansa|Interstate)\s"


_CASE = r"\b(?:Case|Docket|File|Suit|Cause|Caso|Expediente|Causa)\s(?:(?:[Nn]o\.?|[Nn]úm\.|[Nn]\.?º|#|number)\s?)?$"
_AIRLINES = "IB|UX|VY|FR|LH|BA|AF|AM|AV|LA|AA|UA|DL|KL|TP|EK|QR|CM|AR|Y4|I2|V7|U2|LX|AZ"
_FLIGHT = re.compile(r"\b[Vv]uelos?(?:\s\w+){0,2}\s$")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def _figure(text: str, locale: Locale, paired: bool = False) -> str:
    """Return a number in a code: A-three twenty, flight three seventy; `paired` reads four digits two by two."""
    value = int(text)
    if text[0] == "0":
        return digit_words(text, locale)
    if len(text) == 4 and 1900 <= value <= 2099:
        return year(value, locale)
    if paired and len(text) == 4 and value % 100:
        oh = locale.pick("oh ", "cero ") * (value % 100 < 10)
        return f"{cardinal(value // 100, locale)} {oh}{cardinal(value % 100, locale)}"
    if not locale.is_es and len(text) == 3 and value % 100:
        rest = f"oh {cardinal(value % 100, locale)}" if value % 100 < 10 else cardinal(value % 100, locale)
        return f"{cardinal(value // 100, locale)} {rest}"
    return cardinal(value, locale)


def _code(match: re.Match, locale: Locale, glossary: Glossary) -> str:
    """Return letters one by one and numbers as numbers; letters that are a word stay one."""
    said = ""
    figures = match["code"].translate(_SUBSCRIPTS)
    paired = not locale.is_es or bool(
        re.match(rf"(?:{_AIRLINES})\d", figures) or _FLIGHT.search(left_of(match))
    )
    for piece in re.finditer(r"[A-ZÑ]+|[a-z]{3}|[a-z]|\d+", figures):
        run = piece[0]
        if run.isdigit() and re.search(r"\d-$", figures[: piece.start()]):
            said += " "  # A320-200: two numbers
        word = run.isalpha() and (len(run) > 1 and run.islower() or glossary.is_word(run, locale.language))
        # A hyphen keeps a letter a letter: engines read "A three" with an article.
        said += (" " if word or said.endswith(" ") else "-") if said else ""
        said += _figure(run, locale, paired) if run.isdigit() else run + " " if word else "-".join(run)
    plural = match.groupdict().get("plural")
    return re.sub("ys$", "ies", " ".join(said.split()) + (plural or ""))


def code_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return the rules for letters with digits: G7, F-16, COVID-19, CO2, 5G, Boeing 737."""

    def mixed(match: re.Match) -> str:
        return _code(match, locale, glossary)

    def address(match: re.Match) -> str:
        return locale.pick(" dot ", " punto ").join(_figure(n, locale) for n in match[0].split("."))

    def aircraft(match: re.Match) -> str:
        first, second = match["type"], match["series"]
        return f"{_figure(first, locale)} {cardinal(int(second), locale)}" + (
            f" {'-'.join(match['end'])}" if match["end"] else ""
        )

    def scan_lines(match: re.Match) -> str:
        known = {"720": "seven twenty", "1080": "ten eighty"}
        words = cardinal(int(match["n"]), locale) if locale.is_es else known[match["n"]]
        return f"{words}-{match['p'].upper()}"

    def case(match: re.Match) -> str | None:
        if not re.search(_CASE, left_of(match)):
            return None
        return ", ".join(digit_words(part, locale) for part in re.findall(r"\d+", match[0]))

    def flight(match: re.Match) -> str:
        return match["word"] + _figure(match["n"], locale)

    reason = "letters one by one, the number as a number"
    letters = r"[A-ZÑ]{1,6}-?\d{1,4}(?:-?[A-Z]{1,2}\d{0,4}){0,2}"
    return [
        rule("number", "digit by digit", r"(?<![\w.,-])\d{1,4}-\d{2,6}(?![\w-]|[.,]\d)", case),
        rule("code", "an address of a computer", r"(?<![\w.,])\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)", address),
        rule(
            "code",
            "a type of aircraft",
            r"(?<![\w.,-])(?P<type>7[0-8]7)-(?P<series>8|9|10|[1-9]00)(?P<end>ER|LR|F)?(?![\w-]|[.,]\d)",
            aircraft,
        ),
        rule("code", reason, r"(?<![\w.-])(?P<code>[A-Z]\d{3}-\d{3,4})(?!\w|[.,]\d)", mixed),
        rule("code", reason, r"(?<![\w.-])(?P<code>[A-Z]{1,3}-?\d{1,4}[A-Z]?)(?P<plural>s)(?!\w)", mixed),
        rule("code", reason, rf"(?<![\w.-])(?P<code>{letters}(?<=\d)[a-rt-z]?|{letters})(?!\w|\.\d)", mixed),
        rule("code", reason, r"(?<![\w.-])(?P<code>[A-Z]\d{3}(?:neo|ceo|XLR))(?!\w)", mixed),
        rule(
            "code",
            reason,
            r"(?<!\w)(?P<code>(?:[A-Z]{1,2}[₀-₉]+)+[A-Z]?|[A-Z]{1,2}[₀-₉]+(?:[A-Z][₀-₉]*)*)(?!\w)",
            mixed,
        ),
        rule("code", reason, r"(?<![\w.,])(?P<code>\d{1,3}[A-Z]{1,2}|\d{1,2}-[A-Z])(?![\w-])", mixed),
        rule("code", "read as it is called", r"(?<![\w.,])(?P<n>720|1080)(?P<p>[pi])\b", scan_lines),
        rule("code", "read as it is called", rf"(?P<word>{_CODE_BEFORE})(?P<n>\d{{3}})(?![\w.,]*\d)", flight),
    ]
