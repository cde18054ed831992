"""Rules for dates, decades and centuries."""

from __future__ import annotations

import re

from .languages import Locale
from .numbers import ROMAN, cardinal, ordinal, roman, year
from .rules import Rule, full_stop, left_of, right_of, rule, starts

MONTHS = {
    "en": ("January February March April May June July August September October November December".split()),
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre".split(),
}
_DAYS = {
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "es": "lunes martes miércoles jueves viernes sábado domingo".split(),
}
_EN_MONTH = (
    r"(?P<month>Jan(?:uary|\.)?|Feb(?:ruary|\.)?|Mar(?:ch|\.)?|Apr(?:il|\.)?|May|June?\.?|July?\.?|Aug(?:ust|\.)?"
    r"|Sep(?:tember|t\.?|\.)?|Oct(?:ober|\.)?|Nov(?:ember|\.)?|Dec(?:ember|\.)?)"
)
_ES_MONTH = (
    r"(?P<month>ene(?:ro|\.)?|feb(?:rero|\.)?|mar(?:zo|\.)?|abr(?:il|\.)?|mayo?\.?|jun(?:io|\.)?|jul(?:io|\.)?"
    r"|ago(?:sto|\.)?|sep(?:tiembre|t\.?|\.)?|set(?:iembre|\.)|oct(?:ubre|\.)?|nov(?:iembre|\.)?|dic(?:iembre|\.)?)"
)
_DASH = r"\s?[-–]\s?"


def _month(text: str, locale: Locale) -> str:
    start = text.lower().rstrip(".")[:3].replace("set", "sep")
    return next(m for m in MONTHS[locale.language] if m.lower().startswith(start))


def _day(value: int, locale: Locale) -> str:
    if not locale.is_es:
        return ordinal(value, locale)
    return "primero" if value == 1 and locale.american else cardinal(value, locale)


def _full(day: int, month: int, years: int | None, locale: Locale) -> str:
    name = MONTHS[locale.language][month - 1]
    if locale.is_es:
        words = f"{_day(day, locale)} de {name}"
        return words if years is None else f"{words} de {year(years, locale)}"
    words = f"the {_day(day, locale)} of {name}" if locale.day_first else f"{name} {_day(day, locale)}"
    return words if years is None else f"{words}, {year(years, locale)}"


def _in_place(words: str, match: re.Match) -> str:
    """Return a date as it stands there, "the third of April" without a second "the", with a capital at the start."""
    if not words.startswith("the "):
        return words
    if re.search(r"\b[Tt]he\s+$", left_of(match)):
        return words[4:]
    return words if left_of(match).strip() else f"T{words[1:]}"


def _stopped(match: re.Match, said: str | None) -> str | None:
    """Return a date with the full stop that the dot of its month was as well (el 5 ene.)."""
    return said and said + full_stop(match, said)


def _two_digit(text: str) -> int:
    value = int(text)
    if len(text) == 2:
        value += 2000 if value < 70 else 1900
    return value


def _day_and_month(match: re.Match, locale: Locale) -> tuple[int, int] | tuple[None, None]:
    """Return day and month of two numbers in the order of the country, or the other one if only that is a date."""
    first, second = int(match["a"]), int(match["b"])
    day, month = (first, second) if locale.day_first else (second, first)
    if month > 12 >= day:
        day, month = month, day
    return (day, month) if 1 <= month <= 12 and 1 <= day <= 31 else (None, None)


def date_rules(locale: Locale) -> list[Rule]:
    """Return the rules for dates, decades and centuries."""
    name, reason = "date", "a date as it is said"

    def numeric(match: re.Match) -> str | None:
        day, month = _day_and_month(match, locale)
        return month and _in_place(_full(day, month, _two_digit(match["year"]), locale), match)

    def iso(match: re.Match) -> str | None:
        month, day = int(match["month"]), int(match["day"])
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        return _in_place(_full(day, month, int(match["year"]), locale), match)

    both = [
        rule(name, reason, r"(?<![\w/-])(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)(?![\w-])", iso),
        rule(
            name,
            reason,
            r"(?<![\w/.-])(?P<a>\d{1,2})(?P<mark>[/.-])(?P<b>\d{1,2})(?P=mark)(?P<year>\d{4}|\d\d)(?![\w/-]|\.\d)",
            numeric,
        ),
    ]
    return both + (_spanish_dates(locale) if locale.is_es else _english_dates(locale))


def _english_dates(locale: Locale) -> list[Rule]:
    name, reason = "date", "a date as it is said"

    def month_day(match: re.Match) -> str | None:
        day = int(match["day"])
        last = int(match["last"] or day)
        if not (1 <= day <= 31 and 1 <= last <= 31):
            return None
        words = f"{_month(match['month'], locale)} {_day(day, locale)}"
        if match["last"]:
            words += f" to {_day(last, locale)}"
        return words + (f", {year(int(match['year']), locale)}" if match["year"] else "")

    def day_month(match: re.Match) -> str | None:
        day = int(match["day"])
        if not 1 <= day <= 31:
            return None
        last = f" to {_day(int(match['last']), locale)}" if match["last"] else ""
        words = _in_place(f"the {_day(day, locale)}{last} of {_month(match['month'], locale)}", match)
        return words + (f", {year(int(match['year']), locale)}" if match["year"] else "")

    def month_year(match: re.Match) -> str:
        return f"{_month(match['month'], locale)} {year(int(match['year']), locale)}"

    return [
        rule(
            name,
            reason,
            rf"\b{_EN_MONTH}\s(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:{_DASH}(?P<last>\d{{1,2}})(?:st|nd|rd|th)?)?"
            r"(?:,?\s(?P<year>[12]\d{3}))?(?![\w:%]|[.,/]\d|\s?(?:%|percent|million))",
            month_day,
        ),
        rule(
            name,
            reason,
            rf"(?<![\w.,/:$€£])(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:{_DASH}(?P<last>\d{{1,2}})(?:st|nd|rd|th)?)?"
            rf"\s(?:of\s)?{_EN_MONTH}(?:,?\s(?P<year>[12]\d{{3}}))?(?![\w%]|[.,/]\d)",
            lambda m: _stopped(m, day_month(m)),
        ),
        rule(
            name, reason, rf"\b{_EN_MONTH},?\s(?:of\s)?(?P<year>(?:1\d|20)\d\d)(?![\w%]|[.,/]\d)", month_year
        ),
        rule(
            name,
            reason,
            rf"(?<=\d)\s?[–-]\s?(?={_EN_MONTH}\s\d)|(?<=[a-z.])\s[–-]\s(?=\d{{1,2}}\s{_EN_MONTH.replace('?P<month>', '?:')})",
            lambda m: " to ",
        ),
        rule(
            name,
            reason,
            r"(?<![\w.,/:$-])(?P<a>\d{1,2})/(?P<b>\d{1,2})(?![\w/%-]|[.,]\d)",
            lambda m: _no_year(m, locale),
        ),
        *_english_short_forms(locale),
    ]


_TIMED = re.compile(
    r"\b(?:on|by|until|till|from|since|before|after|through|starting|beginning|effect|effective|dated|due|deadline of"
    r"|starts?|began|begins?|ends?|ended|resumes?|resumed|close[sd]?|opens?|opened|returns?|expires?|expired|arrives?"
    r"|weekend of|week of|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,?|(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)\.?,?)"
    r"\s(?:\d{1,2}/\d{1,2}(?:,|\s(?:to|and|or|through))\s)*$",
    re.IGNORECASE,
)
"""What stands before a date without a year."""
_NO_DATE = (
    r"\s(?:of|cups?|inch(?:es)?|miles?|acres?|teaspoons?|tablespoons?|pounds?|points?|majority|time|size|hours?|percent"
    r"|full|empty|higher|lower|up|down|off|past|length|mark|cm|in|ounces?|odds|tanks?|gallons?|blocks?|dozen|shares?|pages?|cents?|carats?|turns?|sheets?|barrels?|court|pipes?|cases?|scale|speed)\b(?! the (?:evening|morning|afternoon))"
)
_CHANGED = (
    r"\b(?:fell|fall\w*|rose|ris\w+|cut\w*|up|down|grew|grow\w*|gain\w*|lower\w*|rais\w+|increas\w+|decreas\w+|drop\w*|shr\w+"
    r"|reduc\w+|lost|lose|mov\w+|jump\w*|slip\w*|climb\w*)\s(?:\w+\s)?by\s$"
)
"""Before a fraction: rates fell by 3/4."""


def _no_year(match: re.Match, locale: Locale) -> str | None:
    """Return a date without a year behind a word of time (on 3/4); elsewhere 3/4 is a fraction."""
    if not _TIMED.search(left_of(match)) or re.match(_NO_DATE, right_of(match)):
        return None
    if re.search(_CHANGED, left_of(match)):
        return None
    if match[0] in ("9/11", "24/7", "7/7" if locale.british else ""):  # events with a name of their own
        return None
    day, month = _day_and_month(match, locale)
    return month and _in_place(_full(day, month, None, locale), match)


_PART = r"(?:and|or|to|through|at|night|morning|afternoon|evening)\b"


def _english_short_forms(locale: Locale) -> list[Rule]:
    """Return the rules for Mon., Nov. and the '90s."""

    def weekday(match: re.Match) -> str:
        return next(d for d in _DAYS["en"] if d.startswith(match["day"][:3]))

    def last_day(match: re.Match) -> str:
        said = weekday(match)
        return said + full_stop(match, said)

    def decade(match: re.Match) -> str | None:
        century, tens = match["century"], match["tens"]
        if tens == "00":
            if century is None:
                return None
            return "two thousands" if century == "20" else f"{cardinal(int(century), locale)} hundreds"
        words = re.sub("y$", "ie", cardinal(int(tens), locale)) + "s"
        return f"{cardinal(int(century), locale)} {words}" if century else words

    return [
        rule(
            "abbreviation",
            "a short form is said in full",
            rf"\b(?P<day>Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|(?<!\b[Tt]he )Sun)(?:\.(?=,?\s[A-Z\d]|,?\s{_PART})|(?=,?\s(?:\d{{1,2}}\s)?{_EN_MONTH}))",
            weekday,
        ),
        rule(
            "abbreviation",
            "a short form is said in full",
            r"\b(?P<day>Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|(?<!\b[Tt]he )Sun)\.(?=[\"”'’)\]]*\s*$|\s[a-z]|[,;:])",
            last_day,
        ),
        rule(
            "abbreviation",
            "a short form is said in full",
            r"\b(?P<m>Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec)\.",
            lambda m: _month(m["m"], locale) + full_stop(m, ""),
        ),
        rule(
            "abbreviation",
            "a short form is said in full",
            r"(?<!\w)c\.\s?(?=[12]\d{3}\b)",
            lambda m: "circa ",
        ),
        rule(
            "year",
            "a year by its last two digits",
            r"(?<!\w)['’]0(\d)(?!\w)",
            lambda m: f"oh {cardinal(int(m[1]), locale)}",
        ),
        rule(
            "decade",
            "a decade is a plural",
            r"(?<![\w.,$€£])['’]?(?P<century>1[1-9]|20)?(?P<tens>\d0)['’]?s\b",
            decade,
        ),
    ]


_ROMANS = rf"(?P<a>(?=[IVX]+\b){ROMAN})(?P<link>\s?[-–]\s?|\sy\s|\se\s|\sal?\s)(?P<b>(?=[IVX]+\b){ROMAN})\b"


def _spanish_dates(locale: Locale) -> list[Rule]:
    name, reason = "date", "a date as it is said"

    def day_month(match: re.Match) -> str | None:
        day = int(match["day"])
        if not 1 <= day <= 31:
            return None
        words = _day(day, locale)
        if match["last"]:
            words += f" al {_day(int(match['last']), locale)}"
        words += f" de {_month(match['month'], locale)}"
        return words + (f" de {year(int(match['year']), locale)}" if match["year"] else "")

    def short(match: re.Match) -> str | None:
        day, month = int(match["day"]), int(match["month"])
        if not (1 <= day <= 31 and 1 <= month <= 12):
            return None
        return _full(day, month, None, locale)

    return [
        rule(
            name,
            reason,
            rf"(?<![\w.,/:])(?P<first>(?P<day>\d{{1,2}})(?:\.?[ºo]\b|\.?º)?(?:\s?[-–]\s?(?P<last>\d{{1,2}}))?)\s(?:de\s)?"
            rf"{_ES_MONTH}(?:,?\s(?:de\s|del\s)?(?P<year>[12]\d{{3}}))?(?![\w%]|[.,/]\d)",
            lambda m: _stopped(m, _first_of_month(m, locale) or day_month(m)),
        ),
        rule(
            name,
            reason,
            r"(?:(?<=\bel\s)|(?<=\bdel\s)|(?<=\bal\s)|(?<=\bdía\s)|(?<=(?:lunes|artes|coles|ueves|ernes|ábado|mingo)\s)|(?<=(?:unes|rtes|oles|eves|rnes|bado|ingo),\s))(?P<day>\d{1,2})/(?P<month>\d{1,2})(?![\w/%]|[.,]\d)",
            short,
        ),
        rule(
            "decade",
            "a decade by its number",
            r"(?<![\w.,])['’]?(\d0)['’]?s\b",
            lambda m: cardinal(int(m[1]), locale),
        ),
        rule(
            "abbreviation",
            "a short form is said in full",
            r"\b(?P<day>lun|mié|jue|vie|sáb|dom)\.(?=,?\s\d)",
            lambda m: next(d for d in _DAYS["es"] if d.startswith(m["day"])),
        ),
        *_centuries(locale),
    ]


def _centuries(locale: Locale) -> list[Rule]:
    """Return the rules for siglo XXI, s. XIX, ss. XV-XVI."""

    def century(match: re.Match) -> str | None:
        value = roman(match["roman"])
        words = ordinal(value, locale) if value <= 10 else cardinal(value, locale)
        article = "S" if match["word"] == "Siglo" or starts(match) else "s"
        return f"{article}iglo{'s' if match['many'] else ''} {words}"

    def centuries(match: re.Match) -> str:
        a, b = (roman(match[i]) for i in ("a", "b"))
        link = " a " if match["link"].strip() in ("-", "–") else f" {match['link'].strip()} "
        words = [ordinal(v, locale) if v <= 10 else cardinal(v, locale) for v in (a, b)]
        return f"{'Siglos' if starts(match) else 'siglos'} {link.join(words)}"

    return [
        rule("century", "centuries in words", rf"\b(?P<word>[Ss]iglos|[Ss]s\.)\s{_ROMANS}", centuries),
        rule(
            "century",
            "a century is said as a number",
            rf"\b(?P<word>[Ss]iglo|[Ss]\.)(?P<many>s)?\s(?P<roman>(?=[IVX]+\b){ROMAN})\b",
            century,
        ),
    ]


def _first_of_month(match: re.Match, locale: Locale) -> str | None:
    """Return the date for an explicit 1.º, which is "primero" everywhere."""
    if match["day"] != "1" or not re.search("[ºo]", match["first"]) or match["last"]:
        return None
    words = f"primero de {_month(match['month'], locale)}"
    return words + (f" de {year(int(match['year']), locale)}" if match["year"] else "")
