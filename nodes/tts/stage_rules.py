"""Stage directions, which a script has for its crew: [LIVE SHOT], [SOT 0:15], (laughs), (risas). They are not spoken."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches

from .glossary import Glossary
from .rules import Rule
from .tags import NAMES

_SOUNDS = (
    r"laughs?|laughing|laughter|chuckles?|applause|applauds|cheers|cheering|pause|pauses|beat|long pause|sighs?|coughs?|music|music plays"
    r"|crowd cheers|clears throat|crosstalk|inaudible|unintelligible|gasps?|smiles?|whispers?|shouting|singing|silence"
    r"|risas?|ríe|ríen|se ríe|se ríen|aplausos?|pausa|música|suspira|suspiros?|ovación|abucheos|silencio|tose|ininteligible|gritos|llora"
    r"|sonríe|vítores"
)
_CREW = (
    r"SOT|VO|V/O|VOSOT|VO/SOT|NATS?|PKG|LIVE|LIVE SHOT|GFX|CG|OTS|B-ROLL|STANDUP|STAND-UP|TAKE VO|TAKE SOT|ROLL SOT|OUTCUE|IN CUE"
    r"|ON CAM|ON CAMERA|VTR|CORTE|TOTAL|COLAS?|EN VIVO|EN DIRECTO|RÓTULO|CABECERA|SINTONÍA"
)
_CAPS = r"[A-ZÁÉÍÓÚÑÜ0-9][A-ZÁÉÍÓÚÑÜ0-9 :/.,#&'’\"+-]*"
_STAGE = re.compile(
    rf"\[(?P<inner>{_CAPS}|(?i:{_SOUNDS}))\]|\((?P<round>(?i:{_SOUNDS})|(?:{_CREW})(?: \d{{0,2}}:\d\d)?)\)"
)


def _is_direction(match: re.Match, glossary: Glossary) -> bool:
    """Return whether brackets hold a direction: no tag in capitals, no acronym ([NATO]), no number."""
    inner = match["inner"]
    if inner is None:
        return True
    if len(re.findall(r"[^\W\d_]", inner)) < 2:
        return False
    first = re.match(r"[A-Za-z_]+(?=[:\s]|$)", inner)
    if first and (":" in inner or first[0] == inner) and get_close_matches(first[0].lower(), NAMES, 1, 0.8):
        return False
    words = glossary.spell.union(*glossary.words.values())
    return inner not in words


def without_directions(text: str, glossary: Glossary) -> str:
    """Return `text` with spaces for its stage directions, as long as it was: what is left is checked for tags."""
    return _STAGE.sub(lambda m: " " * len(m[0]) if _is_direction(m, glossary) else m[0], text)


def stage_rules(glossary: Glossary, dropped: Callable[[str], None]) -> list[Rule]:
    """Return the rule for stage directions; `dropped` is told each."""

    def say(match: re.Match) -> str | None:
        if not _is_direction(match, glossary):
            return None
        dropped(match[0])
        return " "

    return [Rule("direction", "a stage direction is not spoken", _STAGE, say)]
