"""Rules for scores: sets of tennis, cricket, team records, British football, and races such as a 10K."""

from __future__ import annotations

import re

from .languages import Locale
from .numbers import cardinal
from .rules import Rule, left_of, right_of, rule

_SET = r"(?:[67]-[0-7]|[0-5]-[67]|1[0-5]-(?:\d|1[0-3]))"
_BREAK = r"(?:\s?\(\d{1,2}(?:-\d{1,2})?\))?"
_NEXT = r"(?:,\s?|\s|\s?/\s?|;\s?|,?\sand\s)"
_CRICKET = re.compile(
    r"\b(?:cricket|innings|wickets?|stumps|declared|overs?|batting|batted|bowled|bowlers?|batters?|batsmen|Test match|Ashes"
    r"|the crease|runs|lbw|all out|T20|ODI)\b"
)
_RECORD_BEFORE = re.compile(
    r"\b(?:are|is|was|were|went|goes|go|going|started|starts|start|finished|finish|now|sit|sits|stand|stands|'re|'s)\s$"
)
_RECORD_VERB = re.compile(
    r"\b(?:(?:improved?|improves|moved?|moves|dropped?|drops|fell|falls?) to|records? of|records? (?:is|was)(?: now)?)\s$"
)
_RECORD_AFTER = (
    r"\s(?:this (?:season|year)|last season|on the (?:season|year|road)|overall|at home|in (?:conference|league|division|the division|their last)"
    r"|record\b|for the (?:season|year)|all[- ]time|to start|against the spread|away)"
)
_FOOTBALL = re.compile(
    r"\b(?:won|win|wins|lost|lose|loss|beat|beaten|beats|drew|draw|defeat\w*|victory|goals?|league|cup|half[- ]time|full[- ]time"
    r"|score\w*|led|lead|leading|trailed?|trailing|aggregate|match|FT|HT|nil|striker|United|City)\b",
    re.IGNORECASE,
)
_COUNTED = r"\s(?:years?|days?|weeks?|months?|hours?|minutes?|people|percent|per cent|points?|miles?|km|cm|mph|inches|degrees|majority|vote)\b"


def sport_rules(locale: Locale) -> list[Rule]:
    """Return the rules for scores whose two numbers are not joined by "to"."""

    def word(text: str, zero: str) -> str:
        return zero if int(text) == 0 else cardinal(int(text), locale)

    def pair(text: str, zero: str = "love") -> str:
        return "-".join(word(n, zero) for n in text.split("-"))

    def sets(match: re.Match) -> str:
        said = ""
        for one in re.finditer(r"(?P<set>\d+-\d+)(?:\s?\((?P<tie>[\d-]+)\))?(?P<link>[^\d(]*)", match[0]):
            said += pair(one["set"])
            if one["tie"]:  # 7-6 (5): the loser's points; the winner has 7, or two more
                low = one["tie"]
                said += ", " + pair(low if "-" in low else f"{max(7, int(low) + 2)}-{low}", "zero")
            link = one["link"].strip(" ,;/")
            said += f" {link} " if link else ", " if one["link"] else ""
        return said

    def cricket(match: re.Match) -> str | None:
        if int(match["b"]) > 9 or int(match["a"]) < 10:
            return None
        if not _CRICKET.search(left_of(match) + right_of(match)):
            return None
        return f"{cardinal(int(match['a']), locale)} for {cardinal(int(match['b']), locale)}"

    def record(match: re.Match) -> str | None:
        before, after = left_of(match), right_of(match)
        listed = re.search(r"\b[A-Z][\w’']+\s\($", before) and after.startswith(")") and not locale.british
        stands = _RECORD_BEFORE.search(before) and re.match(_RECORD_AFTER, after)
        owned = re.match(r"\srecord\b", after)
        if not (listed or stands or owned or _RECORD_VERB.search(before)):
            return None
        return f"{cardinal(int(match['a']), locale)} and {cardinal(int(match['b']), locale)}"

    def football(match: re.Match) -> str | None:
        if re.match(_COUNTED, right_of(match)):
            return None
        return pair(match[0], "nil") if _FOOTBALL.search(left_of(match) + right_of(match)) else None

    name, reason = "score", "a score as it is called"
    edge = r"(?![\w-]|[.,]\d)"
    pairs = rf"(?<![\w.,/:$€£-])(?P<a>\d{{1,3}})[-–](?P<b>\d{{1,3}}){edge}"
    start = rf"(?<![\w.,/:-]){_SET}"
    many = rf"{start}{_BREAK}(?:{_NEXT}{_SET}{_BREAK})+{edge}"
    if locale.is_es:
        rules = [rule(name, reason, rf"{start}(?:\s?/\s?{_SET})+{edge}", lambda m: _spanish_sets(m, locale))]
    else:
        rules = [rule(name, reason, many, sets)]
    rules += _figures(locale)
    if locale.is_es:
        return rules
    rules += [rule(name, reason, pairs, cricket), rule(name, reason, pairs, record)]
    if locale.british:
        rules.append(rule(name, reason, rf"(?<![\w.,/:$€£-])\d{{1,2}}-\d{{1,2}}{edge}", football))
    return rules


def _figures(locale: Locale) -> list[Rule]:
    """Return the rules for a 10K race and, in Spanish, a team by its age (la sub-21)."""

    def aged(match: re.Match) -> str:
        return f"{match['sub']} {cardinal(int(match['n']), locale)}"

    def race(match: re.Match) -> str:
        return f"{cardinal(int(match['n']), locale)}-K"

    reason = "read as it is called"
    races = r"(?:race|run|walk|course|fun run|runner|runners|corrida|carrera|record|loop|trail)\b"
    return [
        rule("code", reason, rf"(?<![\w.,$€£])(?P<n>\d{{1,2}})[kK](?=\s{races})", race),
        *([rule("code", reason, r"\b(?P<sub>[Ss]ub)[- ](?P<n>\d{1,2})\b", aged)] if locale.is_es else []),
    ]


def _spanish_sets(match: re.Match, locale: Locale) -> str:
    """Return sets between slashes: seis a tres, seis a cuatro."""
    pairs = (n.split("-") for n in re.split(r"\s?/\s?", match[0]))
    return ", ".join(" a ".join(cardinal(int(n), locale) for n in two) for two in pairs)
