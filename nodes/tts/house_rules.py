"""Rules for addresses on a street: house numbers in pairs, sides (N. Main St.), ZIP codes behind a state."""

from __future__ import annotations

import re

from .languages import Locale
from .numbers import cardinal, digit_words
from .rules import Rule, full_stop, left_of, rule

_WAYS = (
    r"(?:St|Ave|Blvd|Rd|Dr|Ln|Ct|Pl|Sq|Pkwy|Ter|Cir|Hwy|Street|Avenue|Boulevard|Road|Drive|Lane|Court|Place|Square|Parkway"
    r"|Terrace|Circle|Highway|Way|Plaza)\b"
)
_SIDES = {
    **{"N": "North", "S": "South", "E": "East", "W": "West"},
    **{"NE": "Northeast", "NW": "Northwest", "SE": "Southeast", "SW": "Southwest"},
}
_COUNTRIES = (
    r"(?:Korea|Dakota|Carolina|America|Africa|Ireland|Virginia|Sudan|Bank|Coast|Side|End|Atlantic|Pacific)"
)
_REGION = r"(?<![\w.])(?P<side>[NSEW])\.(?=\s(?:Koreans?|Korea|Dakota|Carolina|Africans?|Africa|Virginia|Coast|Side)\b)"
_STATES = (
    r"(?:Ala|Ariz|Ark|Calif|Colo|Conn|Del|Fla|Ga|Ill|Ind|Kan|Ky|La|Md|Mass|Mich|Minn|Miss|Mo|Mont|Neb|Nev|N\.H|N\.J|N\.M|N\.Y"
    r"|N\.C|N\.D|Okla|Ore|Pa|R\.I|S\.C|S\.D|Tenn|Tex|Vt|Va|Wash|W\.Va|Wis|Wyo|D\.C)\."
    r"|Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Georgia|Hawaii|Idaho|Illinois|Indiana"
    r"|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts|Michigan|Minnesota|Mississippi|Missouri|Montana|Nebraska"
    r"|Nevada|New (?:Hampshire|Jersey|Mexico|York)|(?:North|South) (?:Carolina|Dakota)|Ohio|Oklahoma|Oregon|Pennsylvania"
    r"|Rhode Island|Tennessee|Texas|Utah|Vermont|Virginia|Washington|West Virginia|Wisconsin|Wyoming|DC"
)


def _house(number: str, locale: Locale) -> str:
    """Return a house number: fourteen fifty, sixteen hundred, three oh five, two thousand."""
    if len(number) > 4 or number[0] == "0":
        return digit_words(number, locale)
    value = int(number)
    high, low = divmod(value, 100)
    if value % 1000 == 0:
        return cardinal(value, locale)
    if not low:
        return f"{cardinal(high, locale)} hundred"
    return f"{cardinal(high, locale)} {'oh ' * (low < 10)}{cardinal(low, locale)}"


def house_rules(locale: Locale) -> list[Rule]:
    """Return the rules for English house numbers and ZIP codes; Spanish reads both as plain numbers."""
    if locale.is_es:
        return []

    def sided(match: re.Match) -> str:
        return f"{_house(match['n'], locale)} {_SIDES[match['side']]}"

    def side_only(match: re.Match) -> str:
        return _SIDES[match["side"]]

    def plain(match: re.Match) -> str:
        return _house(match["n"], locale)

    def zip_code(match: re.Match) -> str | None:
        if not re.search(rf",\s(?:{_STATES})\s$", left_of(match)):
            return None
        return ", ".join(digit_words(part, locale) for part in match[0].split("-"))

    def way(match: re.Match) -> str:
        said = {"Ave": "Avenue", "St": "Street", "Blvd": "Boulevard", "Rd": "Road", "Pl": "Place"}[
            match["way"]
        ]
        return said + full_stop(match, said)

    number = r"(?<![\w.,$€£#/:-])(?P<n>\d{3,5})"
    name = r"(?:\d{1,3}(?:st|nd|rd|th)|[A-Z][a-z’']+)"
    street = rf"{name}(?:\s{name}){{0,2}}"
    side = r"(?P<side>[NS][EW]|[NSEW])\.?"
    reason = "a house number as it is called"
    return [
        rule("address", reason, rf"{number}\s{side}(?=\s(?!{_COUNTRIES}){name})", sided),
        rule("abbreviation", "a short form is said in full", _REGION, side_only),
        rule("address", reason, rf"(?<=[\w,] ){side}(?=\s{street}\s{_WAYS})", side_only),
        rule("address", reason, rf"{number}(?=\s(?:(?:North|South|East|West)\s)?{street}\s{_WAYS})", plain),
        rule(
            "abbreviation",
            "a short form is said in full",
            r"(?:(?<=\dst )|(?<=\dnd )|(?<=\drd )|(?<=\dth ))(?P<way>Ave|St|Blvd|Rd|Pl)(?:\.|(?!\w))",
            way,
        ),
        rule("postal code", "digit by digit", r"(?<![\w.,$-])\d{5}(?:-\d{4})?(?![\w,.-]*\d)", zip_code),
    ]
