"""Rules for numbers that are read digit by digit: telephones, post codes, PINs, long numbers with hyphens."""

from __future__ import annotations

import re

from .languages import Locale
from .numbers import digit_words
from .rules import Rule, rule, starts

_LINE = r"móvil|tel(?:éfono|\.)?|tfno\.|whatsapp|fax|phone|cell|mobile|call|llam[ea]n? al|teléfono"
_CODES = "|".join(
    rf"(?<=\b{word}\s)"
    for word in (
        "ends in",
        "ending in",
        "PIN",
        "passcode",
        "acaba en",
        "termina en",
        "text",
        "code is",
        "PIN is",
        "PIN es",
    )
)
_SPANISH_POST = r"(?<=, )(?:0[1-9]|[1-4]\d|5[0-2])\d{3}(?=\s[A-ZÁÉÍÓÚ][a-z])"
_POSTAL = r"C\.\s?P\.|CP|[Cc]ódigo postal|(?:ZIP|zip|Zip)(?: [Cc]ode)?"
_LINES = (
    r"(?<![\w+])\+\d{1,3}(?:[ .-]?\(0\))?(?:[ .-]?\(?\d{1,4}\)?){2,5}(?!\w)",
    r"(?<![\w-])(?:\+?1[ .-])?\(?\d{3}\)?[ .-]\d{3}[.-]\d{4}(?![\w-])",
    r"(?<![\w-])\d{3}-\d{4}(?![\w-])",
    # a zero in front: 020 7946 0958, 0800 123 4567, 07700 900123, (0161) 496 0000
    r"(?<![\w.,-])\(?0\d{2,4}\)?(?:[ -]\d{3,6}){1,3}(?![\w-]|[.,]\d)",
)


def _english_lines() -> tuple[str, str, tuple[str, ...]]:
    """Return the words before a number that is dialled, its form, and the forms that stand for themselves."""
    patterns = (
        r"(?<![\w.,-])(?:1 )?\d{3} \d{3} \d{4}(?![\w-]|[.,]\d)",
        r"(?<![\w-])(?:1-)?8\d\d-(?=[A-Z]{4,}\b)",
        r"(?<![\w.,-])\d{3}(?=\s(?:hotline|lifeline|helpline)\b)",
    )
    return (
        r"call(?:s|ed|ing)?(?:\s\w+){0,2}\son|call(?:ed|ing)?|dial(?:ed|ing)?|phone[ds]?|rang|ring|text(?:ed|ing)?",
        r"\d{3}(?: or \d{3}| \d{3})?",
        patterns,
    )


def _spanish_lines() -> tuple[str, str, tuple[str, ...]]:
    """Return the same for Spanish: 91 123 45 67, 55 1234 5678 (Mexico), 612 34 56 78, 900 123 456."""
    call = r"(?:llam|marc|marq)[a-záéíóúñ]*(?:\s(?:al|el))?|tel\.|teléfono|emergencias"
    patterns = (
        r"(?<![\w.,-])\(?9[1-8]\)?[ -]\d{3}[ -]\d\d[ -]\d\d(?![\w-])",
        r"(?<![\w.,-])\d\d \d{4}[ -]\d{4}(?![\w-]|[.,]\d)",
        r"(?<![\w-])[6-9]\d{2}[ -]\d{2}[ -]\d{2}[ -]\d{2}(?![\w-])",
        r"(?<![\w-])[6-9]\d{2}[ -]\d{3}[ -]\d{3}(?=[.;!?]?\s*$|[.,;]?\s(?:o|y|u)\b|[,;])",
    )
    return call, r"\d{3}(?: \d{2,3}){0,3}", patterns


def telephone_rules(locale: Locale) -> list[Rule]:
    """Return the rules for telephone numbers, and the three digits of an emergency call."""

    def groups(match: re.Match) -> str:
        parts = re.findall(r"\d+", match[0])
        start = locale.pick("plus ", "más ") if match[0].startswith("+") else ""
        return start + ", ".join(digit_words(p, locale) for p in parts)

    def dialled(match: re.Match) -> str:
        word = {"tel. ": "teléfono ", "Tel. ": "Teléfono "}.get(match["word"], match["word"])
        return word + re.sub(
            r"\d+", lambda d: digit_words(d[0], locale), re.sub(r"(?<=\d) (?=\d)", ", ", match["digits"])
        )

    def posted(match: re.Match) -> str:
        word = match["word"] if match["word"][1:2].islower() or not locale.is_es else "código postal"
        word = word[0].upper() + word[1:] if starts(match) else word
        return f"{word} {digit_words(match['digits'], locale)}"

    def by_digit(match: re.Match) -> str:
        return ", ".join(digit_words(p, locale) for p in re.findall(r"\d+", match[0]))

    def whole(match: re.Match) -> str:
        n = match["digits"]
        cuts = (0, 3, 6, len(n))
        return match["word"] + ", ".join(
            digit_words(n[a:b], locale) for a, b in zip(cuts, cuts[1:], strict=False)
        )

    name, reason = "telephone", "a telephone number is read digit by digit, in its groups"
    call, dials, patterns = _spanish_lines() if locale.is_es else _english_lines()
    return [
        *(rule(name, reason, p, groups) for p in (*_LINES, *patterns)),
        rule(name, reason, rf"(?P<word>\b(?i:{_LINE})\s?:?\s?)(?P<digits>\d{{9,10}})(?![\w.,-]*\d)", whole),
        rule("number", "a long number by its parts", r"(?<![\w.,-])\d+(?:-\d+){3,}[\dX]?(?![\w-])", by_digit),
        rule("number", "digit by digit", rf"(?:{_CODES})(?<![\w.,-])\d{{4,6}}(?![\w-]|[.,]\d)", by_digit),
        rule("postal code", "digit by digit", r"(?<=\b[A-Z]{2} )\d{5}(?:-\d{4})?(?![\w,.-]*\d)", by_digit),
        rule(name, reason, r"\b(?P<word>[Tt]ext\s[A-Z]+\sto\s)(?P<digits>\d{4,6})(?![\w.,/%-]*\d)", dialled),
        *([rule("postal code", "digit by digit", _SPANISH_POST, by_digit)] if locale.is_es else []),
        rule(
            "postal code",
            "digit by digit",
            rf"\b(?P<word>(?:{_POSTAL})(?::|\sis|\ses)?)\s(?P<digits>\d{{5}})(?![\w.,-]*\d)",
            posted,
        ),
        rule(name, reason, rf"\b(?P<word>(?i:{call})\s)(?P<digits>{dials})(?![\w.,/%-]*\d)(?!\s?%)", dialled),
    ]
