"""Rules for money, percentages and measures (U1, U2): the unit is said after the number, where it is heard."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .languages import FUNCTION_EN, Locale
from .numbers import cardinal, is_one, noun_gender, number, number_pattern, split_number
from .rules import Rule, full_stop, left_of, right_of, rule
from .units import CURRENCIES, PERCENTS, PESO, UNITS, Currency, Noun

DASH = r"[ \u00a0]?[-–][ \u00a0]?"
_SPACE = r"[ \u00a0\u202f]?"
_SCALES = {
    "en": {
        "thousand": r"[Kk]|thousand",
        "million": r"M|m|mn|mln|MM|million",
        "billion": r"B|b|bn|Bn|billion",
        "trillion": r"T|tn|trn|trillion",
        "lakh": "lakh",
        "crore": "crore",
    },
    "es": {
        "mil": r"[Kk]|mil(?! mill)",
        "millones": r"M|mill\.|MM|millones|millón",
        "mil millones": r"B|bn|mil[ \u00a0]millones|mil[ \u00a0]M",
        "billones": r"T|tn|billones|billón",
    },
}


def scale_pattern(locale: Locale) -> str:
    """Return the pattern of the words and letters for thousands, millions and more."""
    return "|".join(sorted(_SCALES[locale.language].values(), key=len, reverse=True))


def scale_of(text: str | None, locale: Locale) -> str | None:
    """Return the word for a scale as it was written, None for none."""
    if not text:
        return None
    for word, pattern in _SCALES[locale.language].items():
        if re.fullmatch(pattern, text):
            return word
    return None


@dataclass(frozen=True)
class Amount:
    """A number with its scale: in words, whether it is one, and whether Spanish wants "de" before its noun."""

    words: str
    one: bool
    de: bool = False


def amount(text: str, scale: str | None, locale: Locale, gender: str = "n") -> Amount:
    """Return a number as written and the word of its scale in words."""
    whole, fraction = split_number(text, locale)
    if scale in ("thousand", "mil") and not fraction.strip("0"):
        whole, fraction, scale = f"{whole}000", "", None
    elif scale in ("thousand", "mil") and len(fraction) <= 3:  # 1.5K is one thousand five hundred
        whole, fraction, scale = f"{whole}{fraction.ljust(3, '0')}".lstrip("0"), "", None
    one = is_one(whole, fraction)
    if scale is None:
        de = locale.is_es and not fraction and int(whole) > 0 and int(whole) % 10**6 == 0
        return Amount(number(whole, fraction, locale, gender), one, de)
    if not locale.is_es:
        return Amount(f"{number(whole, fraction, locale)} {scale}", False)
    if one:
        words = {"millones": "un millón", "billones": "un billón"}.get(scale, scale)
    else:
        words = f"{_before_scale(number(whole, fraction, locale, 'm'))} {scale}"
    return Amount(words, False, scale != "mil")


def _before_scale(words: str) -> str:
    """Return a Spanish number as it stands before millones: dos coma un millones, tres coma veintiún millones."""
    return re.sub(r"\buno$", "un", re.sub("veintiuno$", "veintiún", words))


def sign_words(sign: str | None, locale: Locale) -> str:
    """Return "plus " or "minus " for a sign, nothing for none."""
    if not sign:
        return ""
    return locale.pick("plus ", "más ") if sign == "+" else locale.pick("minus ", "menos ")


def is_attribute(match: re.Match) -> bool:
    """Return whether an English amount stands before a noun it describes: a $5 bill, the 10 km run."""
    noun = re.match(r"[\s-]+[\"“'‘«]?([a-z]+)", right_of(match))
    if re.match(_DESCRIBED, right_of(match)):
        return True
    if noun is None or noun[1] in FUNCTION_EN:
        return False
    return bool(
        re.search(
            r"\b(?:an?|the|this|that|its|his|her|their|our|another|[^\W\d_]+['’]s)\s+$",
            left_of(match),
            re.IGNORECASE,
        )
    )


_DESCRIBED = (
    r"\s(?:sprint|race|dash|hurdles|freestyle|relay|final|winds?|gusts|speed limit|marathon|stretch|record)\b"
)


_MONEY = r"\s(?:bills?|notes?|coins?|banknotes?|tickets?|bets?)\b"
"""What an amount of money describes without an article: $20 bills."""


def with_noun(spoken: Amount, noun: Noun, locale: Locale, attribute: bool) -> str:
    """Return an amount and its noun in the number that it asks for; as an attribute English has the singular."""
    word = noun.one(locale) if spoken.one or attribute else noun.many(locale)
    return f"{spoken.words} {'de ' if spoken.de else ''}{word}"


def _money(match: re.Match, locale: Locale) -> str | None:
    currency = _currency(match, locale)
    unit = currency.unit
    gender = unit.gender if locale.is_es else "n"
    scale = scale_of(match["scale"], locale)
    sign = sign_words(match["sign"], locale)
    first, second = match["a"], match["b"]
    attribute = not locale.is_es and (is_attribute(match) or bool(re.match(_MONEY, right_of(match))))
    if second:
        low = amount(first, scale_of(match["ascale"], locale), locale, gender)
        high = amount(second, scale, locale, gender)
        joined = Amount(f"{low.words} {locale.pick('to', 'a')} {high.words}", False, high.de)
        return sign + with_noun(joined, unit, locale, attribute)
    whole, fraction = split_number(first, locale)
    if scale is None and len(fraction) == 2 and currency.minor and not attribute:
        return sign + _cents(whole, fraction, currency, locale)
    spoken = amount(first, scale, locale, gender)
    return sign + with_noun(spoken, unit, locale, attribute)


def _currency(match: re.Match, locale: Locale) -> Currency:
    """Return the currency of an amount: $50 MXN and $50 pesos are pesos, and so is the $ of Mexico."""
    found = match.groupdict()
    if found.get("code"):
        return CURRENCIES[found["code"]]
    if match["sym"] == "$" and (locale.peso or found.get("named")):
        return PESO
    if match["sym"] == "$" and locale.is_es and re.match(r"\s+por\s+dólar", right_of(match)):
        return PESO  # the price of a dollar
    return CURRENCIES[match["sym"]]


def _cents(whole: str, fraction: str, currency: Currency, locale: Locale) -> str:
    """Return an amount with two decimals as units and hundredths."""
    unit, minor = currency.unit, currency.minor
    hundredths = int(fraction)
    parts = []
    if int(whole) or not hundredths:
        value = Amount(
            number(whole, "", locale, unit.gender if locale.is_es else "n"),
            is_one(whole, ""),
            locale.is_es and int(whole) > 0 and int(whole) % 10**6 == 0,
        )
        parts.append(with_noun(value, unit, locale, False))
    if hundredths:
        words = cardinal(hundredths, locale, minor.gender if locale.is_es else "n")
        parts.append(f"{words} {minor.one(locale) if hundredths == 1 else minor.many(locale)}")
    return locale.pick(" and ", " con ").join(parts)


def _short_money(locale: Locale) -> list[Rule]:
    """Return the rules for amounts without a whole number ($.99, $.5 million) and for Spanish mdp, mdd."""
    n, scales = number_pattern(locale), scale_pattern(locale)
    ordered = sorted(CURRENCIES, key=len, reverse=True)
    name, reason = "U2 currency", "the unit is said after the number, in words"

    def say_millions(match: re.Match) -> str:
        thousand, kind = match["mark"].lower().count("m") > 1, match["mark"].lower()[-1]
        currency = {"p": PESO, "d": CURRENCIES["$"], "e": CURRENCIES["€"]}[kind]
        value = amount(match["a"], "mil millones" if thousand else "millones", locale)
        return with_noun(value, currency.unit, locale, False)

    def below_scale(match: re.Match) -> str:
        value = amount(f"0{locale.decimal}{match['b']}", scale_of(match["scale"], locale), locale)
        currency = PESO if locale.peso and match["sym"] == "$" else CURRENCIES[match["sym"]]
        return with_noun(value, currency.unit, locale, False)

    def only_cents(match: re.Match) -> str:
        currency = PESO if locale.peso and match["sym"] == "$" else CURRENCIES[match["sym"]]
        return sign_words(match["sign"], locale) + _cents("0", match["b"], currency, locale)

    signs = "|".join(re.escape(s) for s in ordered if CURRENCIES[s].minor and not s.isalpha())
    below_one = rf"(?<![\w.,])(?P<sign>[-−+])?(?P<sym>{signs})[.,](?P<b>\d\d)(?![\d]|[.,]\d)"
    millions = rf"(?<![\w.,])\$?{_SPACE}(?P<a>{n}){_SPACE}(?P<mark>m?md[pde]|M?MD[PDE])(?!\w)"
    return [
        *([rule(name, reason, millions, say_millions)] if locale.is_es else []),
        rule(
            name,
            reason,
            rf"(?<![\w.,])(?P<sym>{signs})[.,](?P<b>\d+){_SPACE}(?P<scale>{scales})(?!\w)",
            below_scale,
        ),
        rule(name, reason, below_one, only_cents),
    ]


def money_rules(locale: Locale) -> list[Rule]:
    """Return the rules for money: symbol or code before or after the number, ranges, cents."""
    n, scales = number_pattern(locale), scale_pattern(locale)
    ordered = sorted(CURRENCIES, key=len, reverse=True)
    symbols = "|".join(map(re.escape, ordered))
    # A code needs a space: COP 30 is money, COP30 a summit.
    leading = "|".join(re.escape(s) + (r"(?=[ \u00a0])" if s.isalpha() else "") for s in ordered)
    codes = "|".join(s for s in ordered if s.isalpha())
    name, reason = "U2 currency", "the unit is said after the number, in words"
    before = (
        rf"(?<![\w.,])(?P<sign>[-−+])?(?P<sym>{leading}){_SPACE}(?P<a>{n})(?:{_SPACE}(?P<ascale>{scales}))?"
        rf"{DASH}(?:{symbols})?(?P<b>{n})(?:{_SPACE}(?P<scale>{scales}))?(?!\w)"
    )
    before_one = (
        rf"(?<![\w.,])(?P<sign>[-−+])?(?P<sym>{leading}){_SPACE}(?P<a>{n})(?P<b>)(?P<ascale>)"
        rf"(?:(?:{_SPACE}|-(?=[btm]\w\w))(?P<scale>{scales}))?(?!\w)"
        rf"(?:[ \u00a0](?:(?P<code>{codes})(?!\w)|(?P<named>pesos?)\b(?!\s(?:mexicanos|argentinos|chilenos|colombianos))))?"
    )
    after = (
        rf"(?<![\w.,])(?P<sign>[-−+])?(?P<a>{n})(?P<ascale>)(?:{DASH}(?P<b>{n}))?"
        rf"(?:{_SPACE}(?P<scale>{scales})(?:[ \u00a0]de)?)?{_SPACE}(?P<sym>{symbols})(?!\w)"
    )
    signed = (
        rf"(?<![\w.,])(?P<sym>{leading})(?P<sign>[-−])(?P<a>{n})(?P<b>)(?P<ascale>)(?:{_SPACE}(?P<scale>{scales}))?"
        r"(?P<code>)(?P<named>)(?!\w)"
    )
    cents = rf"(?<![\w.,])(?P<a>{n})[ \u00a0]?¢"

    def say(match: re.Match) -> str | None:
        return _money(match, locale)

    def say_cents(match: re.Match) -> str:
        value = amount(match["a"], None, locale, "m" if locale.is_es else "n")
        return f"{value.words} {locale.pick('cent', 'centavo')}{'' if value.one else 's'}"

    return [
        *_short_money(locale),
        rule(name, reason, before, say),
        rule(name, reason, before_one, say),
        rule(name, reason, signed, say),
        rule(name, reason, after, say),
        rule(name, reason, cents, say_cents),
    ]


def percent_rules(locale: Locale) -> list[Rule]:
    """Return the rule for percent, per mille, percentage and basis points."""
    n = number_pattern(locale)
    marks = "|".join(re.escape(m) for m in sorted(PERCENTS, key=len, reverse=True))
    pattern = rf"(?<![\w.,])(?P<sign>[-−+])?(?P<a>{n})(?:{_SPACE}%?{DASH}(?P<b>{n}))?{_SPACE}(?P<mark>{marks})(?!\w)"

    def say(match: re.Match) -> str | None:
        if _below_a_line(match):
            return None
        noun = PERCENTS[match["mark"]]
        gender = noun.gender if locale.is_es else "n"
        spoken = amount(match["a"], None, locale, gender)
        words = sign_words(match["sign"], locale) + spoken.words
        if match["b"]:
            words += f" {locale.pick('to', 'a')} {amount(match['b'], None, locale, gender).words}"
        said = f"{words} {noun.one(locale) if spoken.one and not match['b'] else noun.many(locale)}"
        return said + full_stop(match, said)

    return [rule("U1 percent", "decimal and percent sign in words, as one unit", pattern, say)]


def unit_rules(locale: Locale) -> list[Rule]:
    """Return the rules for measures, and for scales that stand without a unit (5m people, 10K)."""
    n = number_pattern(locale)
    units = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True))
    pattern = (
        rf"(?<![\w.,])(?P<sign>[-−+])?(?P<a>{n})(?:{DASH}(?P<b>{n}))?(?P<gap>[ \u00a0\u202f-]?)"
        rf"(?P<unit>{units})(?!\w|\.\w)"
    )

    def say(match: re.Match) -> str | None:
        if _below_a_line(match):
            return None
        noun = UNITS[match["unit"]]
        if noun.spaced and match["gap"] not in (" ", "\u00a0", "\u202f") and not _close(match):
            return None
        if match["unit"] == "m" and not match["gap"] and _is_million(match, locale):
            return None
        gender = noun.gender if locale.is_es else "n"
        spoken = amount(match["a"], None, locale, gender)
        words = sign_words(match["sign"], locale) + spoken.words
        if match["b"]:
            words += f" {locale.pick('to', 'a')} {amount(match['b'], None, locale, gender).words}"
            spoken = Amount(words, False)
        attribute = not locale.is_es and (match["gap"] == "-" or is_attribute(match))
        said = with_noun(Amount(words, spoken.one, spoken.de), noun, locale, attribute)
        return said + full_stop(match, said)

    reason = "the unit in words, singular or plural as the number asks"
    return [
        *_special_units(locale),
        rule("U2 unit", reason, pattern, say),
        _scale_rule(locale),
    ]


def _below_a_line(match: re.Match) -> bool:
    """Return whether a number is the lower half of a fraction: the 2 of 1/2 %."""
    return len(match["a"]) == 1 and bool(re.search(r"(?<!\d)\d/$", left_of(match)))


def _close(match: re.Match) -> bool:
    """Return whether a unit may stand close to its number: 9.58s, 20g, 2l; not the 80s, 5g for a network, 5t."""
    decimal = bool(re.search("[.,]", match["a"]))
    return decimal or (match["unit"] in ("g", "l") and len(match["a"]) > 1)


_STONES = r"(?<![\w.,])(?P<st>\d{1,2})\s?st\s(?P<lb>\d{1,2})\s?lbs?\b"


def _special_units(locale: Locale) -> list[Rule]:
    """Return the rules for 2h 5m, 6'2", 14st 3lb, 3x and 3 x 4 m."""
    n = number_pattern(locale)

    def hours(match: re.Match) -> str:
        return locale.pick(" and ", " y ").join(
            (quantity(match["h"], "h", locale), quantity(match["m"], "min", locale))
        )

    def height(match: re.Match) -> str:
        feet, inches = (amount(match[i], None, locale, g) for i, g in ((1, "m"), (2, "f")))
        if locale.is_es:
            return f"{feet.words} pies y {inches.words} pulgada{'' if inches.one else 's'}"
        return f"{feet.words} foot {inches.words}"

    def stones(match: re.Match) -> str:
        rest = f" {amount(match['lb'], None, locale).words}" if match["lb"] else ""
        return f"{amount(match['st'], None, locale).words} stone{rest}"

    def times(match: re.Match) -> str:
        return f"{amount(match['a'], None, locale, 'f').words} {locale.pick('times', 'veces')}"

    def size(match: re.Match) -> str:
        first = amount(match["a"], None, locale).words
        return f"{first} {locale.pick('by', 'por')} {quantity(match['b'], match['unit'], locale)}"

    name, reason = "U2 unit", "the unit in words"
    sizes = rf"(?<![\w.,])(?P<a>{n})\s?[x×]\s?(?P<b>{n})\s?(?P<unit>m|cm|mm|km|ft)(?!\w)"
    return [
        rule(name, reason, r"(?<![\w.,])(?P<h>\d{1,2})\s?h\s?(?P<m>\d{1,2})\s?m(?:in)?\b", hours),
        rule(name, reason, r"(?<![\w.,])(?P<h>\d{1,2})h(?P<m>[0-5]\d)(?!\w)", hours),
        rule(name, reason, r"(?<![\w.,])(\d)\s?ft\.?\s(\d{1,2})\s?in\b(?:\.(?=\s[a-z]))?", height),
        *([] if locale.is_es else [rule(name, reason, _STONES, stones)]),
        rule(name, reason, r"(?<![\w.,])(\d)['’′](\d{1,2})(?:[\"”″]|''|(?!\w))", height),
        rule(name, reason, sizes, size),
        rule(name, reason, rf"(?<![\w.,])(?P<a>{n})\s?x(?!\w|\s?\d)", times),
    ]


def quantity(text: str, unit: str, locale: Locale, sign: str | None = None) -> str:
    """Return a number and its unit in words."""
    noun = UNITS[unit]
    value = amount(text, None, locale, noun.gender if locale.is_es else "n")
    return sign_words(sign, locale) + with_noun(value, noun, locale, False)


def _scale_rule(locale: Locale) -> Rule:
    n = number_pattern(locale)
    pattern = (
        rf"(?<![\w.,])(?P<sign>[-−+])?(?P<a>{n})(?:{DASH}(?P<b>{n}))?(?P<gap>{_SPACE})"
        rf"(?P<scale>{scale_pattern(locale)})(?!\w)"
    )

    def say(match: re.Match) -> str | None:
        text = match["scale"]
        if not _is_scale(match, locale):
            return None
        scale = scale_of(text, locale)
        gender = noun_gender(match.string, match.end()) if scale == "mil" else "n"
        sign = sign_words(match["sign"], locale)
        if match["b"]:
            low = amount(match["a"], None, locale, gender).words
            return f"{sign}{low} {locale.pick('to', 'a')} {amount(match['b'], scale, locale, gender).words}"
        spoken = amount(match["a"], scale, locale, gender)
        linked = spoken.de and len(text) <= 2 and re.match(r"\s+(?!de\b)[^\W\d_]", right_of(match))
        return f"{sign}{spoken.words}{' de' if linked else ''}"

    return rule("U2 scale", "thousands, millions and more in words", pattern, say)


def _is_scale(match: re.Match, locale: Locale) -> bool:
    """Return whether a letter after a number is a scale: not in apartment 4B, 4K video or 5 M."""
    text = match["scale"]
    if len(text) > 1:
        return True
    if not locale.is_es and (match["gap"] or (text in "bTm" and not _is_million(match, locale))):
        return False
    if text in "MBT" and not re.search("[.,]", match["a"]):
        return bool(re.match(r"\s+[a-záéíóúñ]", right_of(match)))
    return not (text == "K" and match["a"] in ("2", "4", "8"))  # sizes of a picture


_LENGTH = r"\s+(?:long|wide|tall|deep|high|away|dash|sprint|race|hurdles|above|below|from|of|freestyle|final|run|in|to)\b"


def _is_million(match: re.Match, locale: Locale) -> bool:
    """Return whether an attached m means million, as in 5m people; metres before long, race and the like."""
    after = right_of(match)
    noun = re.match(r"\s+([a-z]+)", after)
    if re.match(r"\+|\s+of (?:the|its|his|her|their|our|[A-Z]\w*'s)\b", after) and not locale.is_es:
        return True  # 75m+ records, 1.5m of the 3m voters
    if locale.is_es or noun is None or noun[1] in FUNCTION_EN:
        return False
    return not re.match(_LENGTH, after)
