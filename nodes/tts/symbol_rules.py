"""Rules for what is not a word: emoji, control characters, quotation marks, ellipses, symbols, markup."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from .languages import Locale
from .rules import Rule, left_of, right_of, rule
from .units import PER
from .web_rules import dropped_url_rules

EMOJI = (
    "(?:[\U0001f000-\U0001faff\u2600-\u27bf\u2b00-\u2bff\u231a-\u23ff]"
    "[\ufe0e\ufe0f\u200d\u20e3\U000e0020-\U000e007f]*)+|[\ufe0e\ufe0f\u20e3]"
)
INVISIBLE = "\ufe0e\ufe0f\u20e3\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f\u061c"
_QUOTES = '"“”„‟«»‹›「」『』'


def is_odd(char: str) -> bool:
    """Return whether nothing can say a character: controls, surrogates, private and unassigned ones."""
    return unicodedata.category(char) in ("Cc", "Cs", "Co", "Cn") and not char.isspace()


def dropped_rules(dropped: Callable[[str], None]) -> list[Rule]:
    """Return the rules for what is left out; `dropped` is told each piece."""

    def emoji(match: re.Match) -> str:
        if match[0].strip(INVISIBLE):  # not worth a word when invisible
            dropped(match[0])
        return " "

    def odd(match: re.Match) -> str | None:
        if not is_odd(match[0]):
            return None
        dropped(f"U+{ord(match[0]):04X}")
        return ""

    return [
        *dropped_url_rules(dropped),
        rule("emoji", "a picture has no sound", EMOJI, emoji),
        rule("invisible", "no sound", f"[{INVISIBLE}]+", lambda m: "", silent=True),
        rule("control", "no sound", r"[^\w\s!-~]", odd),
        rule("control", "no sound", r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", odd),
    ]


def punctuation_rules(locale: Locale) -> list[Rule]:
    """Return the rules for ellipses, quotation marks, brackets, dashes and markup."""

    def ellipsis(match: re.Match) -> str:
        after = right_of(match)
        if not after.strip(f" \t\n{_QUOTES}')]’"):
            return "."
        if not left_of(match).strip(f" \t\n{_QUOTES}'([‘"):
            return ""
        return (
            "." if match[0][-1] == "." and re.match(r"\s+[A-ZÁÉÍÓÚÑ¿¡]", after) and len(match[0]) > 3 else ","
        )

    def mark_after_ellipsis(match: re.Match) -> str:
        return match["mark"]

    pause = "an ellipsis is a pause: engines run the words together"
    return [
        rule("ellipsis", pause, r"\s?(?:\.{2,}|…+|(?:\.\s){2,}\.)\s?(?P<mark>[?!])", mark_after_ellipsis),
        rule("ellipsis", pause, r"\s?(?:\.{2,}|…+|(?:\. ){2,}\.)[.…]*(?:\s?,)?", ellipsis),
        rule("repeated mark", "once is enough", r"(?P<m>[¡¿])(?P=m)+", lambda m: m["m"], silent=True),
        rule("repeated mark", "once is enough", r"(?P<m>[!?])[!?]*(?P=m)[!?]*", lambda m: m["m"]),
        rule("repeated mark", "once is enough", r"\?!|!\?", lambda m: "?"),
        *_silent_marks(locale),
    ]


def _silent_marks(locale: Locale) -> list[Rule]:
    """Return the rules for marks without a sound of their own; they are not listed among the changes.

    An s before a closing quotation mark keeps it in English: it may be the players' own.
    """
    mid = r"(?<=[\w.,!?])['’](?!\w)" if locale.is_es else r"(?<=[.,!?])['’](?!\w)|(?<=[a-rt-z\d])['’](?!\w)"
    marks = "quotation marks", "no sound"
    aside = "brackets", "an aside is between commas"
    markup = r"(?<![\w*])[*_~`]+(?=\w)|(?<=[\w.,!?])[*_~`]+(?!\w)|^#+\s|[*`~|\\^]+"
    dashes = r"\s+(?:--+|[–—-])\s+|(?<=\w)(?:--+|—)(?=\w)"
    outer = r"(?<=[,.;:!?])\s*[—–](?=\s|$)|^\s*[—–-]+\s*"
    table = [
        (*marks, f"[{_QUOTES}]", ""),
        ("apostrophe", "one form", r"(?<=\w)[’ʼ＇](?=\w)", "'"),
        (*marks, rf"(?<!\w)['‘’](?=\w)|{mid}", ""),
        ("dash", "one form", outer, " "),
        ("dash", "one form", dashes, " — "),
        ("dash", "one form", r"\s+—(?=\w)|(?<=[\w.%])—(?=[\s,.;:])", " — "),
        (*aside, r"\s+[(\[{](?=[\w$€£+−-])", ", "),
        (*aside, r"(?<=[\w.%])[)\]}](?=\s+\w)", ","),
        ("brackets", "no sound", r"[()\[\]{}]", " "),
        ("markup", "no sound", markup, ""),
    ]
    return [
        *(
            rule(name, reason, pattern, lambda m, s=said: s, silent=True)
            for name, reason, pattern, said in table
        ),
        rule(*marks, r"(?<=s)['’](?!\w)", _closing, silent=True),
    ]


def _closing(match: re.Match) -> str | None:
    """Drop a mark behind an s where one was opened: vote 'yes'; the players' own stays."""
    return "" if re.search(r"(?<!\w)['‘]\w[^'’]*$", left_of(match)) else None


def symbol_rules(locale: Locale) -> list[Rule]:
    """Return the rules for signs between words and the ones nothing else has claimed."""

    def pick(en: str, es: str) -> Callable[[re.Match], str]:
        return lambda m: f" {locale.pick(en, es)} "

    def per(match: re.Match) -> str:
        return f" {locale.pick(*PER[match['unit']])}"

    units = "|".join(re.escape(u) for u in sorted(PER, key=len, reverse=True))
    reason = "the sign in words"
    table = [
        (r"\s?&\s?", "and", "y"),
        (r"(?<=[\w\s])\s?≈\s?|~(?=\d)", "about", "aproximadamente"),
        (r"\s?≥\s?", "at least", "al menos"),
        (r"\s?≤\s?", "at most", "como máximo"),
        (r"\s?≠\s?", "is not", "no es"),
        (r"\s=\s|(?<=\w)=(?=\w)", "equals", "es igual a"),
        (r"\s\+\s|(?<=\w)\+(?=\s?\w)", "plus", "más"),
        (r"\s[×]\s", "times", "por"),
        (r"\s?÷\s?", "divided by", "entre"),
        (r"\s?±\s?", "plus or minus", "más menos"),
        (r"\s?→\s?", "to", "a"),
        (r"\s@\s", "at", "a"),
        (r"(?<=[a-zá-ú])/(?=\d+\s?h\b)", "every", "cada"),
        (r"(?<![\w.])x(?=\d)", "times", "por"),
        (r"π", "pi", "pi"),
        (r"(?<![-=<>])>\s?(?=\d)", "more than", "más de"),
        (r"(?<![-=<>])<\s?(?=\d)", "less than", "menos de"),
        (r"\s?%", "percent", "por ciento"),
        (r"°", "degrees", "grados"),
        (r"§\s?", "section", "sección"),
        (r"\$", "dollars", "dólares"),
        (r"€", "euros", "euros"),
        (r"£", "pounds", "libras"),
        (r"¥", "yen", "yenes"),
        (r"µ", "micro", "micro"),
    ]
    rules = [rule("per", reason, rf"(?<=[\w€$£¢.])\s?/\s?(?P<unit>{units})\b(?:\.(?=\s+[a-z]))?", per)]
    rules.append(_compass(locale))
    rules.append(rule("slash", "a pause", r"(?<=\S)\s+/\s+(?=\S)", lambda m: ", "))
    rules.append(rule("slash", reason, r"\band/or\b|\by/o\b", lambda m: m[0].replace("/", " ")))
    rules.append(rule("more than", reason, r"(?<=\d)\+(?!\s?\d)", lambda m: ""))
    rules += [rule("symbol", reason, pattern, pick(en, es)) for pattern, en, es in table]
    marks = r"[™®©†‡•·¶]|(?<=\w)\s?/\s?(?=\w)|(?<!\w)[=<>/_#@]+(?!\w)"
    return [*rules, rule("symbol", "no sound", marks, lambda m: " ")]


_SIDES = {
    "N": ("north", "norte"),
    "S": ("south", "sur"),
    "E": ("east", "este"),
    "W": ("west", "oeste"),
    "O": ("west", "oeste"),
}


def _compass(locale: Locale) -> Rule:
    """Return the rule for the side behind degrees, 25°N; the number and its sign are a unit's."""

    def side(match: re.Match) -> str:
        return f" {locale.pick(*_SIDES[match['side']])}"

    return rule("unit", "the side in words", r"(?<=°)\s?(?P<side>[NSEWO])(?!\w)", side)
