"""Rules for the short numbers of help lines, read digit by digit where one is dialled: 911, 112, 988, 061, 116 111.

The same figures count things too (112 people), and a 911 is a car; what stands around them decides.
"""

from __future__ import annotations

import re

from .languages import COMMON, FUNCTION_EN, Locale
from .numbers import digit_words
from .rules import Rule, left_of, right_of, rule

_NUMBERS = {
    "en": "911|999|988|112|111|101|105|211|311|411|511|811|000|119",
    "es": r"112|911|085|091|061|062|080|088|089|092|016|017|024|066|060|010|012|116(?: ?\d{3})?|107|113|119|123|131|132|133|144|147|155|900",
}
_LINE_EN = re.compile(
    r"\s(?:emergency |crisis |suicide )?(?:calls?|callers?|call[- ](?:takers?|centers?|centres?)|dispatch\w*|operators?"
    r"|cent(?:er|re)s?|systems?|services?|lines?|hotlines?|lifelines?|helplines?|numbers?|tapes?|recordings?|audio"
    r"|outages?|emergency|emergencies|transcripts?|text(?:ing)?)\b"
)
_HELP_EN = re.compile(
    r"\b(?:call\w*|dial\w*|emergenc\w*|hotline|lifeline|helpline|help|phone\w*|police|ambulance|report\w*|text\w*|number"
    r"|crisis|hung|hang|transferred|operator|dispatcher)\b",
    re.IGNORECASE,
)
_BEFORE_EN = re.compile(
    r"\b(?:is|was|to|on|call\w*|dial\w*|or|and|via|through|the|a|using|with|remains)\s[\"“'‘]?$", re.I
)
_REACHED_ES = re.compile(
    r"(?:\b(?:al|el|del|llam\w+|marc\w+|marq\w+|teléfonos?|número|avis\w+ a|servicio|atiende)\s|\b(?:emergencias|urgencias|teléfono"
    r"|tel\.|policía|ambulancias?|bomberos|guardia civil|protección civil|socorro|ayuda|información):\s?)$",
    re.IGNORECASE,
)
_COUNTED_ES = (
    r"\s?(?:%|por ciento|aniversario|cumpleaños|congreso|episodio|capítulo|lugar|puesto|regimiento|millones|mil\b|euros"
    r"|pesos|dólares|de la (?:calle|avenida)|de (?:la )?lista|al \d|a \d|[-–/]\d|[.,]\d)"
)
_LISTED_ES = re.compile(rf"(?:\b(?:al|el|del)|:)\s(?:{_NUMBERS['es']})(?:,| o al?| y al?| o| y)\s(?:el\s)?$")


def short_number_rules(locale: Locale) -> list[Rule]:
    """Return the rules for emergency and help numbers, and for the Porsche 911."""

    def english(match: re.Match) -> str | None:
        before, after = left_of(match), right_of(match)
        if re.search(r"[$€£]\s?$", before) or re.match(r"[-–]\d", after):
            return None
        calls = re.match(r"\s(?:calls|callers)\b", after) and match["n"] != "911"
        if _LINE_EN.match(after) and not (
            calls and not re.search(r"\b(?:the|a|an|of the)\s$", before, re.IGNORECASE)
        ):
            return digit_words(match["n"], locale)
        noun = re.match(r"\s([A-Za-z]+)", after)
        if noun and noun[1].lower() not in (FUNCTION_EN | COMMON["en"] | _AFTER_EN) - _COUNTED_EN:
            return None  # 911 homes
        asked = bool(_HELP_EN.search(before + after))
        known = match["n"] in ("911", "988") or asked
        subject = not before.strip(" \"“'‘") and bool(re.match(r"\s(?:is|was|has|will|can)\b", after))
        if asked and (_BEFORE_EN.search(before) or re.search(r":\s$", before)) or known and subject:
            return digit_words(match["n"], locale)
        called = match["n"] == "911" and re.search(r"(?<!total )(?<!toll )(?<!count )\bis\s$", before)
        return digit_words(match["n"], locale) if called else None

    def spanish(match: re.Match) -> str | None:
        before, after = left_of(match), right_of(match)
        if re.match(_COUNTED_ES, after):
            return None
        if not (_REACHED_ES.search(before) or _LISTED_ES.search(before)):
            return None
        if match["n"] == "911" and re.match(r"\s(?:Turbo|Carrera|GT|de Porsche)\b", after):
            return None
        return ", ".join(digit_words(match["n"][i : i + 3], locale) for i in _starts(match["n"]))

    car = locale.pick("nine eleven", "nueve once")
    edge = r"(?![\w%]|[.,/:-]\d|\s?%)"
    name, reason = "telephone", "a telephone number is read digit by digit, in its groups"
    numbers = _NUMBERS[locale.language]
    codes = (
        r"(?P<word>\b(?i:text(?:ing|ed)?|sms(?: to)?)\s(?:[\"“'‘]?[A-Z0-9]+[\"”'’]?\sto\s)?)(?P<n>\d{5,6})"
        if not locale.is_es
        else r"(?P<word>\b(?i:env\w+|mand\w+|sms|mensaje)\b[^.;]{0,30}?\sal\s(?:número\s)?)(?P<n>\d{4,6})"
    )
    return [
        rule("code", "read as it is called", r"(?<=\bPorsche )911(?!\w)", lambda m: car),
        rule(name, reason, rf"{codes}{edge}", lambda m: m["word"] + digit_words(m["n"], locale)),
        rule(
            name,
            reason,
            rf"(?<![\w.,/:-])(?P<n>{numbers}){edge}",
            spanish if locale.is_es else english,
        ),
    ]


_COUNTED_EN = frozenset("people year years week month time new more most some markets market".split())
_AFTER_EN = frozenset("immediately right now directly instead hours day please anytime early".split())


def _starts(number: str) -> tuple[int, ...]:
    """Return where the groups of a short number begin, its space included."""
    return (0,) if len(number) == 3 else (0, len(number) - 3)
