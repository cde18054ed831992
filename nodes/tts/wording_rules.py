"""Rules that change the wording (U5, U6), asked for by name, and the breaths of long clauses (U8).

U5 and U6 are rules for the first round, on the source; U8 works on the finished words, whose number it counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from .languages import Locale
from .rules import Change, Rule, left_of, right_of, rule
from .split import TAG, end_of, start_of

MIN_CLAUSE, MAX_CLAUSE = 8, 16
"""Words from one breath to the next (U8)."""
_ONSETS = {
    "en": {
        "attention": "Attention, please",
        "warning": "This is a warning",
        "breaking": "This is breaking news",
        "breaking news": "This is breaking news",
        "alert": "This is an alert",
        "urgent": "This is urgent",
        "welcome": "A warm welcome",
        "listen": "Listen to this",
        "look": "Look at this",
        "goal": "And it is a goal",
        "congratulations": "Our congratulations",
        "stop": "Please stop",
    },
    "es": {
        "atención": "Pedimos su atención",
        "urgente": "Noticia urgente",
        "última hora": "Noticia de última hora",
        "alerta": "Hay una alerta",
        "aviso": "Este es un aviso",
        "cuidado": "Tengan cuidado",
        "bienvenidos": "Sean todos bienvenidos",
        "bienvenidas": "Sean todas bienvenidas",
        "gol": "Y es gol",
        "escuchen": "Escuchen con atención",
        "miren": "Miren esto",
        "felicidades": "Nuestras felicitaciones",
        "enhorabuena": "Nuestra enhorabuena",
    },
}
_OPEN, _CLOSE = '"“„«‹', '"”‟»›'
MIN_QUOTE = 4
"""Words from which a quotation gets dashes; a shorter one only loses its marks."""


def onset_rules(locale: Locale) -> list[Rule]:
    """Return U5: a lone exclamation, whose attack engines swallow, becomes a phrase."""
    table = _ONSETS[locale.language]

    def say(match: re.Match) -> str:
        return f"{table[' '.join(match['word'].lower().split())]}{'.' if match['mark'] in '.!' else ':'}"

    words = "|".join(sorted(table, key=len, reverse=True)).replace(" ", r"\s+")
    lone = rf"^\s*¡?(?P<word>{words})\s*(?P<mark>[!.:])(?=\s|$)"
    return [rule("U5 onset", "a lone word loses its attack; a phrase carries it", lone, say, re.IGNORECASE)]


def quote_rules(locale: Locale) -> list[Rule]:
    """Return U6: a quotation of four words or more stands between dashes."""

    def say(match: re.Match) -> str | None:
        inner = match["inner"].strip()
        if len(inner.split()) < MIN_QUOTE:
            return None
        before = left_of(match).rstrip()
        after = right_of(match)
        inner = inner.rstrip(",") if after.strip() else inner
        start = "" if not before else "— " if before[-1] not in ",:—" else ""
        end = " —" if re.match(r"\s*[\w¿¡]", after) and inner[-1] not in ".!?" else ""
        return f"{start}{inner}{end}"

    return [
        rule(
            "U6 quotation",
            "quotation marks make engines stop; dashes do not",
            rf"[{_OPEN}](?P<inner>[^{_OPEN}{_CLOSE}]+)[{_CLOSE}]",
            say,
        )
    ]


_SURE = {
    "en": r"but|because|although|though|while|whereas|which|unless|until|after|before|when|where|since|so that|as well as|according to",
    "es": r"pero|porque|aunque|mientras|sino|cuando|donde|puesto que|ya que|así que|después de|antes de|según|además de|lo que",
}
_LAST = {
    "en": r"(?<!hundred )(?<!thousand )(?<!million )(?<!dollars )(?<!pounds )(?<!dollar )(?<!pound )(?<!\w-\w )"
    r"(?<! [A-Z] )(?:and|or)(?! a half| a quarter| three quarters)",
    "es": r"(?<!ta )(?:y|e|o|u)(?! medi[oa]| cuarto)",
}
"""Not inside a number (noventa y nueve, one hundred and one) or an initialism (A-T and T)."""


def pace(text: str, language: str) -> tuple[str, tuple[Change, ...]]:
    """Return a finished sentence with commas where a clause is longer than 16 words (U8), and the changes.

    A comma goes before a conjunction with at least 8 words on both sides, where a reader would breathe;
    if there is none the clause is left as it is: a comma in a wrong place is worse than a long breath.
    """
    changes: list[Change] = []
    out: list[str] = []
    waiting = re.split(r"(?<=[,.;:!?—])(?=\s)", text)[::-1]
    while waiting:
        clause = waiting.pop()
        cut = _breath(clause, language)
        if cut is None:
            out.append(clause)
            continue
        left, right = clause[:cut].rstrip(), clause[cut:]
        reason = f"more than {MAX_CLAUSE} words without a breath"
        before, after = end_of(left), start_of(right)
        changes.append(Change("U8 breath", f"{before} {after}", f"{before}, {after}", reason))
        waiting += [f" {right}", f"{left},"]
    return "".join(out), tuple(changes)


def _breath(clause: str, language: str) -> int | None:
    """Return where a clause that is too long is cut best, None if nowhere or if it is short enough."""
    tags = [m.span() for m in TAG.finditer(clause)]
    ends = [m.end() for m in _WORD.finditer(clause) if m[0][0] != "["]
    if len(ends) <= MAX_CLAUSE:
        return None
    for pattern in (_SURE[language], _LAST[language]):
        found = []
        for match in re.finditer(rf"(?<=\s)(?:{pattern})(?=\s)", clause):
            left = bisect_right(ends, match.start())
            right = len(ends) - left
            inside = any(a < match.start() < b for a, b in tags)
            if left >= MIN_CLAUSE and right >= MIN_CLAUSE and not inside:
                found.append((abs(left - right), match.start()))
        if found:
            return min(found)[1]
    return None


_WORD = re.compile(rf"{TAG.pattern}|[^\s\[]*\w[^\s\[]*")
