"""How text rules work together: each claims stretches of the sentence as it was written, the first claim stands.

Every rule sees the source, never what another rule made of it, so its neighbours are what the writer wrote and no
result is rewritten twice. Tags are claimed first, as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .languages import Locale

Say = Callable[[re.Match], "str | None"]


@dataclass(frozen=True)
class Change:
    """What a rule did: its name, the text before and after, and why."""

    rule: str
    before: str
    after: str
    reason: str

    def __str__(self) -> str:
        after = repr(self.after) if self.after else "nothing"
        return f"{self.rule}: {self.before!r} -> {after} ({self.reason})"


@dataclass(frozen=True)
class Rule:
    """A pattern and what is said for its match; `say` returns None to leave a match alone.

    A silent rule is not listed among the changes (quotation marks, spaces).
    """

    name: str
    reason: str
    pattern: re.Pattern
    say: Say
    silent: bool = False


def rule(name: str, reason: str, pattern: str, say: Say, flags: int = 0, silent: bool = False) -> Rule:
    """Return a Rule with its pattern compiled."""
    return Rule(name, reason, re.compile(pattern, flags), say, silent)


_NEAR = 60
"""Characters a rule looks at around a match: a sentence without an end must not cost the square of its length."""


def left_of(match: re.Match, group: str | int = 0) -> str:
    """Return the text close before a match, or one of its groups."""
    at = match.start(group)
    return match.string[max(0, at - _NEAR) : at]


def right_of(match: re.Match, group: str | int = 0) -> str:
    """Return the text close after a match, or one of its groups."""
    return match.string[match.end(group) : match.end(group) + _NEAR]


def starts(match: re.Match, group: str | int = 0) -> bool:
    """Return whether a match is the first of its sentence, behind quotation marks and the like at most."""
    return not left_of(match, group).strip(" \t\n\"'«“¿¡([-–—")


def joint(match: re.Match, locale: Locale) -> str:
    """Return the word for the dash of a range: "to", "a"; "and", "y" behind "between"."""
    if re.search(
        locale.pick(r"\bbetween\s+$", r"\bentre(?:\s+las?|\s+los)?\s+$"), left_of(match), re.IGNORECASE
    ):
        return locale.pick("and", "y")
    return locale.pick("to", "a")


def full_stop(match: re.Match, said: str) -> str:
    """Return the stop that an abbreviation's own dot was as well, at the end of a sentence."""
    at_end = not right_of(match).strip(" \t\n\"'»”’)]")
    return "." if at_end and match[0].endswith(".") and not said.endswith(".") else ""


class Draft:
    """One sentence and the claims on it."""

    def __init__(self, text: str, kept: Iterable[tuple[int, int]] = ()) -> None:
        """kept: stretches no rule may touch, as (start, end)."""
        self.text = text
        self._taken = bytearray(len(text))
        self._claims: list[tuple[int, int, str, Change | None]] = []
        for start, end in kept:
            self._taken[start:end] = b"\1" * (end - start)

    def free(self, start: int, end: int) -> bool:
        return not any(self._taken[start:end])

    def apply(self, rule: Rule, start: int, end: int) -> None:
        """Claim every match that starts in [start, end) and is free."""
        at = start
        while at < end:
            match = rule.pattern.search(self.text, at)
            if match is None or match.start() >= end:
                return
            a, b = match.span()
            said = rule.say(match) if a < b and self.free(a, b) else None
            if said is None:
                at = a + 1  # what is left of it may match by itself
                continue
            before = match[0]
            change = None if rule.silent or before == said else Change(rule.name, before, said, rule.reason)
            self._claims.append((a, b, said, change))
            self._taken[a:b] = b"\1" * (b - a)
            at = b

    def result(self) -> tuple[str, tuple[Change, ...]]:
        """Return the sentence with every claim in place, and the changes in reading order."""
        out: list[str] = []
        changes: list[Change] = []
        at = 0
        for start, end, said, change in sorted(self._claims):
            out.append(self.text[at:start])
            if said and out and _joins("".join(out[-2:]), said):
                out.append(" ")
            out.append(said)
            if change is not None:
                changes.append(change)
            at = end
            if said and at < len(self.text) and _joins(said, self.text[at]):
                out.append(" ")
        out.append(self.text[at:])
        return "".join(out), tuple(changes)


def _joins(left: str, right: str) -> bool:
    """Return whether two words would run together."""
    return bool(left) and left[-1].isalnum() and right[0].isalnum()
