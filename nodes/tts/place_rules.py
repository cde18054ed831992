"""Rules for short forms that depend on what stands around them: St., Dr., Ave., Mon.-Fri., D-Calif.; Spanish D., Pte."""

from __future__ import annotations

import re

from .glossary import Glossary
from .languages import FUNCTION_EN, PLAIN, Locale
from .numbers import cardinal
from .rules import Rule, full_stop, left_of, right_of, rule, starts

_WAYS = {
    **{"St": "Street", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Dr": "Drive", "Ln": "Lane"},
    **{"Ct": "Court", "Pl": "Place", "Sq": "Square", "Pkwy": "Parkway", "Ter": "Terrace", "Cres": "Crescent"},
    **{"Cir": "Circle", "Hwy": "Highway"},
}
_SAINTS = re.compile(
    r"\s(?:Louis|John|James|Petersburg|Paul|Patrick|Peter|George|Luci[ae]|Kitts|Moritz|Tropez|Andrew|Helen|Thomas|Croix"
    r"|Mary|Joseph|Francis|Michael|Nicholas|Pancras|Clair|Lawrence|Vincent|Martin|Mark|Barts|Bernard|Alban|Ives|Mirren"
    r"|Johnstone|Pauli|Etienne|Étienne|Denis|Germain|Catherine|Cloud|Charles|August|Edmund|Gallen|Helier|David|Stephen"
    r"|Bartholomew|Anthony|Jude|Luke|Matthew|Kilda|Leonard|Maarten|Asaph|Neots|Elizabeth|Ann|Agnes|Teresa|Mari[ae])"
)
_SANTOS = (
    "Sebastián|Pedro|Juan|José|Fernando|Lorenzo|Francisco|Miguel|Martín|Vicente|Isidro|Antonio|Pablo|Luis|Nicolás|Andrés"
    "|Agustín|Marcos|Fermín|Javier|Ildefonso"
)
_BEFORE_SAINT = re.compile(
    r"\b(?:Mount|Mt\.|Fort|Ft\.|Port|Lake|Cape|Bay|East|West|North|South|Bury|Sault|Pope)\s$"
)
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)\.?"
_STATES = (
    r"(?:Calif|Fla|Mass|Penn|Wash|Ariz|Colo|Conn|Ga|Ill|Mich|Minn|Va|Tenn|Mo|Wyo|Tex|Okla|Nev|Pa|Wis|Kan|Ky|Md|Neb|Mont"
    r"|Ala|Ark|Del)\."
)


_WINDS_ES = {
    **{
        "N": "norte",
        "S": "sur",
        "E": "este",
        "O": "oeste",
        "NE": "nordeste",
        "NO": "noroeste",
        "SE": "sudeste",
        "SO": "suroeste",
    },
}
_SIDES_ES = "|".join(sorted(_WINDS_ES, key=len, reverse=True))
_WINDS_EN = {
    **{
        "N": "north",
        "S": "south",
        "E": "east",
        "W": "west",
        "NE": "northeast",
        "NW": "northwest",
        "SE": "southeast",
    },
    "SW": "southwest",
}


_HEADED = "|".join(
    rf"(?<=\b{word} )"
    for word in r"mi mi\. ft ft\. feet yards meters blocks miles mile km kilometers kilometres then [Rr]ain [Ss]now [Ss]torms [Ss]howers moving heading due".split()
)
"""What stands before a side of the compass: 20 mi. W of town, rain SE."""
_ROAD = r"\b(?:I|US|U\.S\.|SR|Rte\.?|Route|Hwy\.?|Highway|Interstate|State Road)[\s-]?\d{1,4}\s$"
_SISTERS = (
    "Mary|Maria|María|Teresa|Theresa|Joan|Helen|Margaret|Catherine|Elizabeth|Anne?|Agnes|Bernadette|Carol|Patricia|Barbara|Rose"
    "|Jean|Simone|Miriam|Clare|Lucy|Monica|Josephine|Norma|Susan|Sarah|Ruth|Angela|Julia"
)


def _named(match: re.Match) -> bool:
    """Return whether a name or a number stands before a match: Wall St., 5th St., not "in St. Paul"."""
    before = re.search(r"([\w'’.-]+)\s$", left_of(match))
    if before is None:
        return False
    word = before[1]
    if word[0].isdigit():
        return True
    return word[0].isupper() and word.lower().rstrip(".") not in FUNCTION_EN | PLAIN["en"] and word[-1] != "."


_CROSSED = re.compile(
    r"\b(?:cruz\w+|río|tráfico|tránsito|circulación|corte|cortado|obras|atasco|cierra|cerrado|río|bajo el|sobre el|en el|por el"
    r"|desde el|hasta el|junto al)\b",
    re.IGNORECASE,
)
_OFFICES = r"\sdel?\s(?:la\s|el\s)?(?:República|Gobierno|Junta|Generalitat|Comunidad|Congreso|Senado|Xunta|Diputación|Cámara|Gobierno|Tribunal|club|Real|comité|[A-Z]{2,})"


def _goes_on(match: re.Match) -> str:
    """Return the word with a capital that follows, "" for none."""
    after = re.match(r"\s([A-ZÁÉÍÓÚÑ][\w'’]*)", right_of(match))
    return after[1] if after else ""


def _spanish_places(locale: Locale, reason: str) -> list[Rule]:
    """Return the Spanish rules: D. José, S. Juan, Pte. (president or bridge), viento NO, el 15M."""

    def wind(match: re.Match) -> str:
        return (match["of"] or "") + _WINDS_ES[match["side"]]

    def day(match: re.Match) -> str:
        return f"{cardinal(int(match['n']), locale)}-M"

    def bridge(match: re.Match) -> str | None:
        return (
            "Puente"
            if _CROSSED.search(left_of(match) + right_of(match)) and not re.match(_OFFICES, right_of(match))
            else None
        )

    def don(match: re.Match) -> str:
        return "Don" if starts(match) else "don"

    return [
        rule("abbreviation", reason, r"(?<![\w.])M[ií]n\.(?=:?\s(?:de\s)?[-−]?\d)", lambda m: "Mínima"),
        rule("abbreviation", reason, r"(?<![\w.])M[aá]x\.(?=:?\s(?:de\s)?[-−]?\d)", lambda m: "Máxima"),
        rule("abbreviation", reason, r"(?<![\w.])Min\.(?=\s[A-ZÁÉÍÓÚÑ])", lambda m: "ministro"),
        rule("abbreviation", reason, r"(?<![\w.])Pte\.(?=\sdel?\s)", bridge),
        rule("abbreviation", reason, r"(?<![\w.])D\.(?=\s[A-ZÁÉÍÓÚÑ][a-záéíóúñ])", don),
        rule("abbreviation", reason, rf"(?<![\w.])S\.(?=\s(?:{_SANTOS})\b)", lambda m: "San"),
        rule("abbreviation", reason, r"(?<!\w)L-V(?!\w)", lambda m: "lunes a viernes"),
        rule("abbreviation", reason, r"(?<!\w)c/\s?(?=\d)", lambda m: "cada "),
        rule("wind", reason, rf"(?<=\b[Vv]iento )(?P<of>del? )?(?P<side>{_SIDES_ES})(?!\w)", wind),
        rule("wind", reason, rf"(?<=\b[Vv]ientos )(?P<of>del? )?(?P<side>{_SIDES_ES})(?!\w)", wind),
        rule(
            "wind",
            reason,
            r"(?:(?<=\bel )|(?<=\bdel )|(?<=\bal ))(?P<of>)(?P<side>N[EO]|S[EO])(?!\w)",
            wind,
        ),
        rule("code", "a day by its number", r"(?<=\b[Ee]l )(?P<n>\d{1,2})M(?!\w|\sde\b)", day),
    ]


def _english_sides(reason: str) -> list[Rule]:
    """Return the rules for the sides of the compass: winds NW, 20 mi. W of town, I-95 S."""

    def side(match: re.Match) -> str:
        return _WINDS_EN[match["side"]] + full_stop(match, "")

    def bound(match: re.Match) -> str | None:
        return _WINDS_EN[match["side"]] if re.search(_ROAD, left_of(match)) else None

    def wind(match: re.Match) -> str:
        return _WINDS_EN[match[0].rstrip(".")]

    sides = "|".join(sorted(_WINDS_EN, key=len, reverse=True))
    return [
        rule(
            "wind",
            reason,
            rf"(?<![\w.])(?:{sides})(?=\swinds?\b)|(?<=\b[Ww]inds )(?:{sides})(?:\.(?=\s[a-z\d])|(?!\w))",
            wind,
        ),
        rule("wind", reason, rf"(?:{_HEADED})(?P<side>{sides})(?:\.(?!\w)|(?![\w.]))", side),
        rule("wind", reason, r"(?<=\d )(?P<side>[NSEW])(?:\.(?=\s[a-z])|(?![\w.]))", bound),
        rule("wind", reason, r"(?<=\b[Tt]he )(?P<side>[NS][EW])(?![\w.])", side),
    ]


def street_rules(locale: Locale) -> list[Rule]:
    """Return the rules for streets and saints (English); D. José (Spanish)."""
    reason = "a short form is said in full"
    if locale.is_es:
        return _spanish_places(locale, reason)

    def way(match: re.Match) -> str | None:
        """Say the kind of street behind its name."""
        after = _goes_on(match)
        if not _named(match):
            return None
        if match["way"] == "St" and (_SAINTS.match(right_of(match)) or _BEFORE_SAINT.search(left_of(match))):
            return None
        if match["way"] in ("Dr", "Ct") and after and after.lower() not in PLAIN["en"]:
            return None  # Ask Dr. Smith
        said = _WAYS[match["way"]]
        return said + full_stop(match, said)

    def saint(match: re.Match) -> str | None:
        return "Saint" if _goes_on(match) else None

    ways = "|".join(_WAYS)
    return [
        rule("abbreviation", reason, rf"(?<=[\w'’] )(?P<way>{ways})(?:\.|(?=,|\s*$))", way),
        rule("abbreviation", reason, r"(?<![\w.])St\.?(?=\s[A-Z])", saint),
        rule("abbreviation", reason, r"(?<![\w.])St\.", lambda m: "Street" + full_stop(m, "Street")),
        *_english_sides(reason),
        rule("abbreviation", reason, rf"(?<![\w.])Sr\.(?=\s(?:{_SISTERS})\b)", lambda m: "Sister"),
        rule("abbreviation", reason, r"(?<![\w.])Ste\.(?=\s[A-Z])", lambda m: "Sainte"),
        rule("abbreviation", reason, r"(?<![\w.])Pt\.(?=\s(?:\d|[IVX]+\b))", lambda m: "Part"),
        *_born(reason),
        *_days_and_states(),
    ]


def _born(reason: str) -> list[Rule]:
    """Return the rules for the years of a life: b. 1986, d. 1999."""
    return [
        rule(
            "abbreviation",
            reason,
            rf"(?<![\w.]){short}\.\s?(?=(?:1\d|20)\d\d(?!\d))",
            lambda m, w=word: f"{w} ",
        )
        for short, word in (("b", "born"), ("d", "died"))
    ]


def _days_and_states() -> list[Rule]:
    def days(match: re.Match) -> str:
        first, last = (next(d for d in _DAYS if d.startswith(match[i][:3])) for i in ("a", "b"))
        return f"{first} to {last}" + full_stop(match, last)

    reason = "a short form is said in full"
    return [rule("abbreviation", reason, rf"(?<!\w)(?P<a>{_DAY})\s?[-–]\s?(?P<b>{_DAY})(?!\w)", days)]


def party_rules(glossary: Glossary) -> list[Rule]:
    """Return the rule for the state behind a party: D-Calif."""

    def state(match: re.Match) -> str:
        said = glossary.abbreviations["en"].get(match[0], match[0])
        return said + full_stop(match, said)

    return [rule("abbreviation", "a short form is said in full", rf"(?<=\b[DRI]-){_STATES}", state)]
