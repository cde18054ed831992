"""Rules for clock times and durations."""

from __future__ import annotations

import re

from .languages import Locale
from .numbers import cardinal, number
from .rules import Rule, joint, left_of, right_of, rule

_HALF = r"(?:\s?(?P<half>[AaPp]\.?\s?[Mm]\b\.?))"


_TO_TIME = r"\s?(?:a|y|[-–])\s?(?:las?\s)?\d{1,2}:\d\d"
_FROM_TIME = r"\d:\d\d(?:\sh)?\s?(?:a|y|[-–])\s?(?:las?\s)?$"
"""The other end of a span of time: both are said without "en punto"."""


_AT_POINT = r"(?:(?<=\b[Aa] las )|(?<=\b[Ll]as )|(?<=\ba la ))(?P<hour>\d{1,2})\.(?P<minute>[0-5]\d)(?P<half>)(?P<hours>)(?![\d%]|\s?%|[.,]\d)"
"""A Spanish time with a point: a las 14.30."""
_AT_POINT_UK = (
    r"(?:(?<=\bat )|(?<=\bAt )|(?<=\buntil )|(?<=\btill )|(?<=\babout )|(?<=\bbefore )|(?<=\bafter ))(?P<hour>[1-9]|1\d|2[0-3])"
    r"\.(?P<minute>[0-5]\d)(?P<half>)(?P<hours>)(?![\d%]|[.,]\d|\s?(?:%|per\b|points?|against|dollars?|euros?|pounds|a share|million|billion|m\b|km|metres|seconds|to the))"
)
"""A British time with a point: at 2.30."""
_LAP = r"(?<![\w:.,])(?P<m>\d{1,2})['’′](?P<s>1[2-9]|[2-5]\d)(?:[\"”″]|'')(?!\w)"
"""Minutes and seconds; below twelve they are feet and inches."""
_RECORD = r"(?:\ben|\bcon|(?:marca|tiempo|récord|registro)\sde(?:\slos)?)\s$"
"""Spanish words before minutes and seconds; before a time of day stands an article."""


def time_rules(locale: Locale) -> list[Rule]:
    """Return the rules for clock times and for durations written as h:mm:ss."""
    say_clock = _spanish_clock if locale.is_es else _english_clock
    name, reason = "time", "a time as it is said"

    def clock(match: re.Match) -> str | None:
        hour, minute, half = int(match["hour"]), int(match["minute"]), match["half"] or None
        if hour > 24 or (half and hour > 12):
            return None
        if locale.is_es and minute == 0 and not half and 0 < hour <= 12:
            if match["hours"]:
                return f"{cardinal(hour, locale, 'f')} hora{'' if hour == 1 else 's'}"
            if re.match(_TO_TIME, right_of(match)) or re.search(_FROM_TIME, left_of(match)):
                return cardinal(hour, locale, "f")
        bare = minute and not (half or match["hours"])
        if locale.is_es and bare and re.search(_RECORD, left_of(match)):
            return f"{cardinal(hour, locale)} {_minutes(minute, locale)}"
        return say_clock(hour, minute, half, locale) + _stop_after(match)

    def hour_only(match: re.Match) -> str | None:
        hour = int(match["hour"])
        if not 0 < hour <= 12:
            return None
        return say_clock(hour, None, match["half"], locale) + _stop_after(match)

    def hours(match: re.Match) -> str:
        first, last = int(match["first"]), int(match["hour"])
        to = joint(match, locale)
        if locale.is_es:
            return f"{cardinal(first, locale, 'f')} {to} {say_clock(last, None, match['half'], locale)}{_stop_after(match)}"
        return f"{cardinal(first, locale)} {to} {say_clock(last, None, match['half'], locale)}{_stop_after(match)}"

    suffix = r"(?P<hours>\s?(?:h|hs|hrs|horas)\b\.?)?" if locale.is_es else "(?P<hours>)"
    at = rf"(?<![\w:.,])(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?!\d|:\d){_HALF}?{suffix}"
    dotted = rf"(?<![\w:.,$€£])(?P<hour>\d{{1,2}})\.(?P<minute>[0-5]\d)(?P<hours>){_HALF}"
    if locale.is_es:
        dotted = rf"(?<![\w:.,$€£])(?P<hour>\d{{1,2}})\.(?P<minute>[0-5]\d)(?:{_HALF}|(?P<hours>\s?(?:h|horas)\b\.?))"
    spans = rf"(?<![\w:.,$€£])(?P<first>[1-9]|1[0-2])\s?[-–]\s?(?P<hour>[1-9]|1[0-2]){_HALF}"
    between = r"(?<=:\d\d)\s?[-–]\s?(?=\d{1,2}:\d\d)|(?<=[mM]\.)[-–](?=\w)|(?<=[apAP]\.m\.|.\d[ap]m|\d [ap]m)\s?[-–]\s?(?=\d)"
    return [
        *_durations(locale),
        *([rule(name, reason, _AT_POINT_UK, clock)] if locale.british else []),
        rule(name, reason, between, lambda m: locale.pick(" to ", " a ")),
        rule(name, reason, at, clock),
        rule(name, reason, dotted, clock),
        *([rule(name, reason, _AT_POINT, clock)] if locale.is_es else []),
        rule(name, reason, spans, hours),
        rule(name, reason, rf"(?<![\w:.,$€£])(?P<hour>\d{{1,2}}){_HALF}", hour_only),
    ]


def _durations(locale: Locale) -> list[Rule]:
    """Return the rules for 1:23:45, 3:43.13, 1'23"456 and, in Spanish, 1'23"."""
    name, reason = "time", "a time as it is said"
    return [
        rule(
            name,
            reason,
            r"(?<![\w:.,])(\d{1,2}):([0-5]\d):([0-5]\d)(?![\w:])",
            lambda m: _duration(m, locale),
        ),
        rule(
            name,
            reason,
            r"(?<![\w:.,])(?P<m>\d{1,2}):(?P<s>[0-5]\d)[.,](?P<f>\d{1,3})(?![\w:]|[.,]\d)",
            lambda m: _race(m, locale),
        ),
        rule(
            name,
            reason,
            r"(?<![\w:.,])(?:(?P<m>\d{1,2})['’′])?(?P<s>\d{1,2})(?:[\"”″]|'')(?P<f>\d{1,3})(?!\w|[.,]\d)",
            lambda m: _race(m, locale),
        ),
        *([rule(name, reason, _LAP, lambda m: _lap(m, locale))] if locale.is_es else []),
    ]


def _duration(match: re.Match, locale: Locale) -> str:
    """Return hours, minutes and seconds: 1:23:45."""
    parts = []
    names = (("hour", "hora"), ("minute", "minuto"), ("second", "segundo"))
    for value, (en, es) in zip(map(int, match.groups()), names, strict=True):
        words = cardinal(value, locale, "f" if es == "hora" else "m")
        parts.append(f"{words} {locale.pick(en, es)}{'' if value == 1 else 's'}")
    return f"{parts[0]}, {parts[1]}{locale.pick(' and ', ' y ')}{parts[2]}"


def _race(match: re.Match, locale: Locale) -> str:
    """Return minutes with a fraction of a second: 3:43.13."""
    minutes, seconds = int(match["m"] or 0), match["s"].lstrip("0") or "0"
    first = f"{cardinal(minutes, locale, 'm')} {locale.pick('minute', 'minuto')}{'' if minutes == 1 else 's'}"
    last = f"{number(seconds, match['f'], locale)} {locale.pick('seconds', 'segundos')}"
    return f"{first} {locale.pick('and', 'y')} {last}" if match["m"] else last


def _lap(match: re.Match, locale: Locale) -> str:
    """Return minutes and seconds written with primes: 1'23\"."""
    minutes, seconds = int(match["m"]), int(match["s"])
    words = f"{cardinal(minutes, locale, 'm')} minuto{'' if minutes == 1 else 's'}"
    return f"{words} y {cardinal(seconds, locale, 'm')} segundo{'' if seconds == 1 else 's'}"


def _stop_after(match: re.Match) -> str:
    """Return the full stop that the last "m." or "h." was as well, at the end of a sentence."""
    at_end = not right_of(match).strip(" \t\n\"'»”’)")
    return "." if match[0].endswith(".") and at_end else ""


def _english_clock(hour: int, minute: int | None, half: str | None, locale: Locale) -> str:
    if half:
        half = " A-M" if half[0] in "Aa" else " P-M"
        if minute:
            return f"{cardinal(hour, locale)} {_minutes(minute, locale)}{half}"
        return f"{cardinal(hour, locale)}{half}"
    if (hour, minute) in ((0, 0), (24, 0)):
        return "midnight"
    if minute == 0:
        return f"{cardinal(hour, locale)} {'o’clock' if hour <= 12 else 'hundred hours'}".replace("’", "'")
    return f"{cardinal(hour, locale)} {_minutes(minute or 0, locale)}"


def _minutes(minute: int, locale: Locale) -> str:
    return (
        f"{locale.pick('oh', 'cero')} {cardinal(minute, locale)}" if minute < 10 else cardinal(minute, locale)
    )


def _spanish_clock(hour: int, minute: int | None, half: str | None, locale: Locale) -> str:
    words = cardinal(hour, locale, "f")
    if half is None:
        if hour > 12 or hour == 0:
            return f"{words} {'horas' if minute == 0 else ('cero ' if minute < 10 else '') + cardinal(minute, locale)}"
        return f"{words} {_past(minute or 0, locale)}"
    if minute:
        words = f"{words} {_past(minute, locale)}"
    if half[0] in "Aa":
        part = "madrugada" if hour in (12, 1, 2, 3, 4, 5) else "mañana"
    elif hour == 12:
        part = "mediodía"
    else:
        part = "tarde" if hour < 8 else "noche"
    return f"{words} {'del' if part == 'mediodía' else 'de la'} {part}"


def _past(minute: int, locale: Locale) -> str:
    if minute == 0:
        return "en punto"
    return "y " + {15: "cuarto", 30: "media"}.get(minute, cardinal(minute, locale))
