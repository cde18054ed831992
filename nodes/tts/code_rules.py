"""Rules for figures that are names: telephone numbers, and letters with digits (G7, F-16, COVID-19)."""

from __future__ import annotations

import re

from .glossary import Glossary
from .languages import Locale
from .numbers import cardinal, digit_words, year
from .rules import Rule, rule


def telephone_rules(locale: Locale) -> list[Rule]:
    """Return the rules for telephone numbers, and the three digits of an emergency call."""

    def groups(match: re.Match) -> str:
        parts = re.findall(r"\d+", match[0])
        start = locale.pick("plus ", "más ") if match[0].startswith("+") else ""
        return start + ", ".join(digit_words(p, locale) for p in parts)

    def dialled(match: re.Match) -> str:
        word = {"tel. ": "teléfono ", "Tel. ": "Teléfono "}.get(match["word"], match["word"])
        return word + ", ".join(digit_words(p, locale) for p in match["digits"].split())

    name, reason = "telephone", "a telephone number is read digit by digit, in its groups"
    call = r"call(?:ed|ing)?|dial(?:ed|ing)?|phone[ds]?"
    dials = r"\d{3}"
    patterns = [
        r"(?<![\w+])\+\d{1,3}(?:[ .-]\(?\d{2,4}\)?){2,5}(?!\w)",
        r"(?<![\w-])(?:1-)?\(?\d{3}\)?[ .-]\d{3}[.-]\d{4}(?![\w-])",
        r"(?<![\w-])\d{3}-\d{4}(?![\w-])",
    ]
    if locale.is_es:
        call = r"(?:llam|marc|marq)[a-záéíóúñ]*(?:\s(?:al|el))?|tel\.|teléfono|emergencias"
        dials = r"\d{3}(?: \d{2,3}){0,3}"
        patterns += [
            r"(?<![\w-])[6-9]\d{2}[ -]\d{2}[ -]\d{2}[ -]\d{2}(?![\w-])",
            r"(?<![\w-])[6-9]\d{2}[ -]\d{3}[ -]\d{3}(?=[.;!?]?\s*$|[.,;]?\s(?:o|y|u)\b|[,;])",
        ]
    return [
        rule(name, reason, rf"\b(?P<word>(?i:{call})\s)(?P<digits>{dials})(?![\w.,/%-]*\d)(?!\s?%)", dialled),
        *(rule(name, reason, p, groups) for p in patterns),
    ]


_CODE_BEFORE = r"\b(?:Boeing|Flight|Route|Highway|Airbus|Lufthansa|Interstate)\s"


def code_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return the rules for letters with digits: G7, F-16, COVID-19, CO2, 5G, Boeing 737."""

    def digits(text: str) -> str:
        value = int(text)
        if text[0] == "0":
            return digit_words(text, locale)
        if len(text) == 4 and 1900 <= value <= 2099:
            return year(value, locale)
        if not locale.is_es and len(text) == 3 and value % 100:
            rest = (
                f"oh {cardinal(value % 100, locale)}" if value % 100 < 10 else cardinal(value % 100, locale)
            )
            return f"{cardinal(value // 100, locale)} {rest}"
        return cardinal(value, locale)

    def mixed(match: re.Match) -> str:
        said = ""
        for run in re.findall(r"[A-ZÑ]+|\d+", match["code"]):
            word = run.isalpha() and glossary.is_word(run, locale.language)
            # A hyphen keeps a letter a letter: engines read "A three" with an article.
            said += (" " if word or said.endswith(" ") else "-") if said else ""
            said += digits(run) if run.isdigit() else run + " " if word else "-".join(run)
        return " ".join(said.split())

    def scan_lines(match: re.Match) -> str:
        known = {"720": "seven twenty", "1080": "ten eighty"}
        words = cardinal(int(match["n"]), locale) if locale.is_es else known[match["n"]]
        return f"{words}-{match['p'].upper()}"

    def flight(match: re.Match) -> str:
        return match["word"] + digits(match["n"])

    reason = "letters one by one, the number as a number"
    return [
        rule(
            "code",
            reason,
            r"(?<![\w.-])(?P<code>[A-ZÑ]{1,6}-?\d{1,4}(?:-?[A-Z]{1,2}\d{0,4}){0,2})(?!\w|\.\d)",
            mixed,
        ),
        rule("code", reason, r"(?<![\w.,])(?P<code>\d{1,3}[A-Z]{1,2}|\d{1,2}-[A-Z])(?![\w-])", mixed),
        rule("code", "read as it is called", r"(?<![\w.,])(?P<n>720|1080)(?P<p>[pi])\b", scan_lines),
        rule("code", "read as it is called", rf"(?P<word>{_CODE_BEFORE})(?P<n>\d{{3}})(?![\w.,]*\d)", flight),
    ]
