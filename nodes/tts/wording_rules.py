"""Rules that change the wording (U5, U6), asked for by name, and the breaths of long clauses (U8).

U5 and U6 are rules for the first round, on the source; U8 works on the finished words, whose number it counts.
"""

from __future__ import annotations

import re

from .languages import Locale
from .rules import Change, Rule, left_of, right_of, rule

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


_TAG = r"\[[^\]\n]*\]"
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
    parts = re.split(r"(?<=[,.;:!?—])(\s+)", text)
    for i in range(0, len(parts), 2):
        while True:
            cut = _breath(parts[i], language)
            if cut is None:
                break
            before = parts[i]
            parts[i : i + 1] = [f"{before[:cut].rstrip()},", " ", before[cut:].lstrip()]
            shown = before[max(0, cut - 20) : cut + 20].strip()
            after = f"{before[max(0, cut - 20) : cut].strip()}, {before[cut : cut + 20].strip()}"
            changes.append(
                Change("U8 breath", shown, after, f"more than {MAX_CLAUSE} words without a breath")
            )
            i += 2
    return "".join(parts), tuple(changes)


def _breath(clause: str, language: str) -> int | None:
    """Return where a clause that is too long is cut best, None if nowhere or if it is short enough."""
    words = _counted(clause)
    if len(words) <= MAX_CLAUSE:
        return None
    for pattern in (_SURE[language], _LAST[language]):
        found = []
        for match in re.finditer(rf"(?<=\s)(?:{pattern})(?=\s)", clause):
            left = sum(end <= match.start() for _, end in words)
            right = len(words) - left
            if left >= MIN_CLAUSE and right >= MIN_CLAUSE:
                found.append((abs(left - right), match.start()))
        if found:
            return min(found)[1]
    return None


def _counted(clause: str) -> list[tuple[int, int]]:
    """Return the spans of the words of a clause, tags not counted."""
    return [
        m.span()
        for m in re.finditer(rf"{_TAG}|[^\s\[]+", clause)
        if re.search(r"\w", m[0]) and m[0][0] != "["
    ]
