"""Rules for web addresses: one a listener can keep is said, a longer one is left out with the words that lead to it.

Said are a domain and at most one short part of a path, with or without https:// and www.: kqtv dot com slash tips.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .languages import Locale
from .numbers import digit_words
from .rules import Rule, right_of, rule

URL = r"(?:https?://|ftp://|www\.)\S+"
AFTER_URL = ".,;:!?)]}'\"»”’"
_TOP = (
    r"(?:com|org|net|edu|gov|mil|int|info|io|ai|co|tv|fm|me|news|app|dev|uk|us|es|cat|gob|mx|ar|cl|pe|uy|ve|ec|eu|de|fr|it|pt"
    r"|br|ca|au|nz|ie|in|jp|cn|ch)"
)
_DOMAIN = rf"(?:\d{{0,3}}[a-zA-Z][\w-]*\.){{1,3}}{_TOP}"
_PATH = 20
"""Letters of a path that a listener keeps."""
_KEPT = re.compile(rf"(?:https?://)?(?:www\.)?{_DOMAIN}(?:/[a-z][\w-]{{0,{_PATH - 1}}})?/?", re.IGNORECASE)
_LONG = rf"{URL}|(?<![\w.@/-]){_DOMAIN}/\S*"
_LEADS = (
    r"(?:for (?:more|details|(?:more|further) (?:information|details|info)|information),? )?(?:please )?"
    r"(?:(?:you|viewers|listeners|residents|voters|people|anyone) (?:can|may|should) (?:also )?)?"
    r"(?:visit(?: us| our (?:web ?)?site| the (?:web ?)?site)?|see|go to|head to|log on to|log in to|check out|check|click on|click|find out more|learn more|(?:read|watch|see|get)(?: (?:it|more|on|the (?:full )?(?:story|report|list|video)))?(?: here| at)?"
    r"|(?:more|full|further|complete) (?:information|details|info|story|results|coverage|list)|more|details|information|info|tickets"
    r"|register|sign up|donate|apply|link|source|follow us)(?: (?:is|are))?(?: available)?(?: online)?(?: (?:at|on|from|via|here))?",
    r"(?:para (?:más|mayor) (?:información|detalles|datos),? )?(?:(?:usted|se|también) )?(?:(?:puede|pueden|podrá|podrán) )?"
    r"(?:visite[n]?(?: nuestra (?:página|web)| nuestro sitio)?|visita[r]?|vaya[n]? a|ve a|ir a|entre[n]? en|entra[r]? en|ingrese[n]? (?:a|en)|ingresa[r]? (?:a|en)|consulte[n]?"
    r"|consulta[r]?|acceda[n]? a|(?:lea|vea|mire)(?: (?:la nota|el informe|el vídeo|más))?(?: (?:completa|completo))?|leer más|ver más|vea más|(?:más|mayor) (?:información|detalles|datos)|información|detalles"
    r"|entradas|boletos|haga clic|pulse|fuente|enlace|síganos|regístrese|inscríbase|done)(?: disponibles?)?(?: (?:en|aquí|a través de))?",
)
_TAIL = r"(?:\s+(?:for|to|if|para|si)\b[^.,;:!?\n\[\]]*|\s+(?:or|o|and|y)\b(?=\s))?"


def kept(address: str) -> bool:
    """Return whether an address is short enough to be said."""
    return bool(_KEPT.fullmatch(address))


def dropped_url_rules(dropped: Callable[[str], None]) -> list[Rule]:
    """Return the rules for addresses that nobody can keep; `dropped` is told each, with the words that go with it."""

    def led(match: re.Match) -> str | None:
        address = match["url"].rstrip(AFTER_URL)
        if kept(address):
            return None
        rest = match["url"][len(address) :]
        if rest:  # the sentence ends here: the tail is none of its own
            dropped(f"{match['lead']}{address}".strip())
            return rest + match["tail"]
        dropped(match[0].strip())
        both = match["link"] and re.fullmatch(r"\s(?:or|and|o|y)", match["tail"])
        return match["link"].rstrip() if both else ""

    def alone(match: re.Match) -> str | None:
        address = match["url"].rstrip(AFTER_URL)
        if kept(address):
            return None
        dropped(address)
        end = match["url"][len(address) :]
        if match["colon"]:
            return end or (":" if right_of(match).strip() else ".")
        return end

    def bracketed(match: re.Match) -> str | None:
        if kept(match["url"]):
            return None
        dropped(match[0].strip(" ()"))
        return ""

    reason = "a long address cannot be listened to"
    either = "|".join(_LEADS)
    near = r"(?P<colon>:\s+)?(?:(?<![\w/])(?:at|on|via|from|through|en|desde|por|a través de)\s)?"
    return [
        rule(
            "URL",
            reason,
            rf"\s?\((?:(?:{either})\s?:?\s+)?(?P<url>(?:https?://|ftp://|www\.)[^\s()]+|{_DOMAIN}/[^\s()]+)\)",
            bracketed,
            re.IGNORECASE,
        ),
        rule(
            "URL",
            reason,
            rf"(?P<lead>(?:^|(?<=[.,;:!?(—\]]\s)|(?<=[.,;:!?(—\]])|(?P<link>,?\s(?:or|and|o|y)\s))(?:{either})\s?:?\s+)"
            rf"(?P<url>{_LONG})(?P<tail>{_TAIL})",
            led,
            re.IGNORECASE,
        ),
        rule("URL", reason, rf"{near}(?P<url>{_LONG})", alone, re.IGNORECASE),
    ]


def spoken_address(text: str, locale: Locale) -> str:
    """Return an address as it is read out: kqtv dot com slash tips."""
    dot, at = locale.pick("dot", "punto"), locale.pick("at", "arroba")
    text = re.sub(r"[.]", f" {dot} ", text)
    text = re.sub(r"/(?=.)", locale.pick(" slash ", " barra "), text.rstrip("/"))
    text = re.sub(r"_", locale.pick(" underscore ", " guion bajo "), text)
    text = re.sub(r"-", locale.pick(" dash ", " guion "), text)
    text = re.sub(r"(?<=\D)(?=\d)|(?<=\d)(?=\D)", " ", text.replace("@", f" {at} "))
    return re.sub(r"\d+", lambda m: digit_words(m[0], locale), " ".join(text.split()))


def address_rules(locale: Locale) -> list[Rule]:
    """Return the rules for what can be read out of addresses: e-mail, short web addresses, handles, hashtags."""
    at = locale.pick("at", "arroba")

    def site(match: re.Match) -> str:
        return spoken_address(match["site"], locale)

    reason = "an address as it is read out"
    return [
        rule(
            "e-mail",
            reason,
            r"(?<![\w.])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
            lambda m: spoken_address(m[0], locale),
        ),
        rule(
            "web",
            reason,
            rf"(?<![\w.@/])(?i:https?://)?(?i:www\.)?(?P<site>{_DOMAIN}\b(?:/[\w-]+)?)/?(?!\.\w|@|/)",
            site,
        ),
        rule("handle", reason, r"(?<![\w.])@(?=[A-Za-z_]\w*)", lambda m: f"{at} "),
        rule("hashtag", reason, r"(?<![\w&])#(?=[^\W\d]|\d+[A-Za-zÑñ])", lambda m: "hashtag "),
    ]
