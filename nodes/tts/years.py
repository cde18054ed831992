"""Which four English digits are a year: a number has "thousand" in it, a year has not."""

from __future__ import annotations

import re

from .languages import FUNCTION_EN, PLAIN
from .rules import left_of, right_of

_YEAR_BEFORE = (
    r"(?i:\b(?:in|since|by|from|until|till|of|during|before|after|year|years|early|late|mid|spring|summer|autumn|fall"
    r"|winter|through|circa|ca\.|c\.|b\.|d\.|class of|back in|between|fiscal|for|around|the|[qh][1-4]|fy|pre|post|born|died|founded|built|elected|published|released)[\s-]|\()$"
)
_YEAR_NOT = r"\s(?:people|votes|jobs|points|miles|dollars|troops|soldiers|homes|tons|deaths|cases|feet|meters|euros)\b"
_YEAR_AFTER = (
    r"(?:\s(?:was|were|is|will|saw|had|has|season|election|elections|budget|World|Olympics|Olympic|report|model"
    r"|campaign|edition|film|study|Games|census|crash|crisis|election|vote|tax|fiscal)\b|[-–]\d|\)|,?\s(?:he|she|it|they|we|the)\b)"
)


def is_year(match: re.Match) -> bool:
    """Return whether four English digits are a year, by the words around them."""
    before, after = left_of(match, "n"), right_of(match, "n")
    if not re.fullmatch(r"1\d{3}|20\d\d", match["n"]) or re.match(_YEAR_NOT, after):
        return False
    if re.match(_MAKES, after) or _attribute(match["n"], before, after):
        return True
    if re.search(_YEAR_BEFORE, before) and not re.search(r"\b(?:one|\d)\s+in\s$", before):
        return True
    if re.match(_YEAR_AFTER, after) or _event(before, after) or re.search(r"[^\W\d_]$", before):
        return True
    # one of several years: in 2019, 2020 and 2021
    earlier, later = re.search(_YEARS_LEFT, before), re.match(_YEARS_RIGHT, after)
    if re.match(_YEAR_NOT, after[later.end() :] if later else after):
        return False
    before_all = before[: earlier.start()] if earlier else before
    after_all = after[later.end() :] if later else after
    linked = sum(len(re.findall(_ONE_YEAR, m[0])) for m in (earlier, later) if m)
    return (
        linked > 1
        or linked == 1
        and bool(re.search(_YEAR_BEFORE, before_all) or re.match(_YEAR_AFTER, after_all))
    )


_MAKES = (
    r"\s(?:Ford|Toyota|Honda|Chevrolet|Chevy|Nissan|BMW|Audi|Tesla|Jeep|Dodge|Kia|Hyundai|Subaru|Mazda|Mercedes|Volkswagen|GMC"
    r"|Ram|Lexus|Volvo|Porsche|Buick|Cadillac|Chrysler|Lincoln|Mitsubishi|Jaguar|Ferrari)\b"
)
_MEASURED = (
    r"\s(?:dollar|pound|euro|mile|meter|metre|foot|ton|tonne|watt|horsepower|square|acre|point|seat|person|man|strong|page|year|day"
    r"|calorie|piece|word|percent|meters|metres|miles)\b"
)


def _attribute(digits: str, before: str, after: str) -> bool:
    """Return whether a year describes what follows: a 2019 Ford, his 2024 ruling; not a 2000 dollar fine, its 2000 jobs."""
    noun = re.match(r"\s([A-Za-z]+)", after)
    if noun is None or not 1900 <= int(digits) < 2040 or re.match(_MEASURED, after):
        return False
    if re.search(r"(?<!s)s$|^(?:people|men|women|children|police|staff|new|more|other)$", noun[1]):
        return False  # they are counted
    return bool(re.search(r"\b(?:an?|his|her|their|its|my|our|that|this)\s$", before, re.IGNORECASE))


_LINK = r"(?:,? and |,? or |, | to )"
_ONE_YEAR = r"(?:1[89]|20)\d\d"
_YEARS_LEFT = rf"(?<![\d.,])(?:{_ONE_YEAR}{_LINK})+$"
_YEARS_RIGHT = rf"(?:{_LINK}{_ONE_YEAR})+(?![\d.,]*\d)"


_ABOUT = frozenset({"about", "nearly", "almost", "some", "around", "over", "roughly"})


def _event(before: str, after: str) -> bool:
    """Return whether a name stands before four digits, and no noun that they count behind: World Cup 2026."""
    name = re.search(r"[\w’',;:] ([A-Z][\w’']+)\s$", before) or re.search(r"^([A-Z][\w’']+)\s$", before)
    if name is None or name[1].lower() in FUNCTION_EN | PLAIN["en"] | _ABOUT:
        return False
    return not re.match(r"\s[a-z]+s\b(?<!\bis)(?<!\bwas)(?<!\bhas)", after)
