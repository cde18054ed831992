"""Rules for the shorthand of markets: currency pairs, $/bbl, quarters and fiscal years, year on year, pence."""

from __future__ import annotations

import re

from .amount_rules import DASH, amount, scale_of, scale_pattern, with_noun
from .languages import Locale
from .numbers import cardinal, number_pattern, ordinal, year
from .rules import Rule, full_stop, left_of, right_of, rule, starts
from .units import CURRENCIES, PER, UNITS

_PAIR = {
    **{"USD": ("dollar", "dólar"), "EUR": ("euro", "euro"), "GBP": ("pound", "libra"), "JPY": ("yen", "yen")},
    **{"CHF": ("Swiss franc", "franco suizo"), "CAD": ("Canadian dollar", "dólar canadiense")},
    **{"AUD": ("Australian dollar", "dólar australiano"), "NZD": ("New Zealand dollar", "dólar neozelandés")},
    **{"MXN": ("Mexican peso", "peso mexicano"), "ARS": ("Argentine peso", "peso argentino")},
    **{"COP": ("Colombian peso", "peso colombiano"), "CLP": ("Chilean peso", "peso chileno")},
    **{"BRL": ("real", "real"), "CNY": ("yuan", "yuan"), "INR": ("rupee", "rupia"), "KRW": ("won", "won")},
    **{"TRY": ("lira", "lira"), "ZAR": ("rand", "rand"), "SEK": ("Swedish krona", "corona sueca")},
    **{"NOK": ("Norwegian krone", "corona noruega"), "PLN": ("zloty", "zloty"), "RUB": ("ruble", "rublo")},
    **{"BTC": ("bitcoin", "bitcóin"), "ETH": ("ether", "éter")},
}
_RATES = {
    "en": {
        "yoy|YoY|YOY|y-o-y|y/y|Y/Y": "year on year",
        "qoq|QoQ|QOQ|q-o-q|q/q|Q/Q": "quarter on quarter",
        "MoM|m-o-m|m/m|M/M": "month on month",
        "ytd|YTD": "year to date",
        r"p\.a\.": "per year",
    },
    "es": {
        r"yoy|YoY|y/y|a/a|i\.\s?a\.": "interanual",
        "qoq|QoQ|q/q|t/t": "intertrimestral",
        "MoM|m/m": "intermensual",
        "ytd|YTD": "en lo que va de año",
    },
}
_LINES = ("240", "360", "480", "720", "1080", "1440", "2160")
_SHARE = re.compile(
    r"\b(?:shares?|stock|price|dividend|pence|penny|fell|rose|target|per share|costs?)\b", re.IGNORECASE
)


_COUNTED = r"\s(?:de\b|people|users|views|followers|jobs|customers|subscribers|barrels|tons|homes|votes|doses|copies|units|viewers)"
"""What a number of millions counts: 3M people, but 3M shares are the firm's."""


def market_rules(locale: Locale) -> list[Rule]:
    """Return the rules for pairs, prices per unit without a number, rates of change and reporting periods."""

    def pair(match: re.Match) -> str | None:
        if match["a"] == match["b"]:
            return None
        said = " ".join(_PAIR[match[i]][locale.is_es] for i in ("a", "b"))
        return said[0].upper() + said[1:] if starts(match) else said

    def price(match: re.Match) -> str:
        unit = CURRENCIES[match["sym"]].unit.many(locale)
        return f"{unit} {locale.pick(*PER[match['unit']])}"

    def rate(match: re.Match, said: str) -> str:
        return said + full_stop(match, said)

    def company(match: re.Match) -> str | None:
        """Say 3M as a firm, but for 3M people and the like."""
        if re.search(r"[$€£]\s?$", left_of(match)) or re.match(_COUNTED, right_of(match)):
            return None
        said = locale.pick("three-M", "tres-M")
        return said.capitalize().replace("-m", "-M") if starts(match) else said

    codes = "|".join(_PAIR)
    units = "|".join(re.escape(u) for u in sorted(PER, key=len, reverse=True))
    symbols = "|".join(re.escape(s) for s in sorted(CURRENCIES, key=len, reverse=True))
    reason = "market shorthand in words"
    rules = [
        rule("code", "a firm", r"(?<![\w.,-])3M(?!\w)", company),
        rule(
            "currency pair",
            "two currencies by name",
            rf"(?<![\w/-])(?P<a>{codes})[/-]?(?P<b>{codes})(?![\w/-])",
            pair,
        ),
        rule(
            "U2 currency", reason, rf"(?<!\w)(?<!\d\s)(?P<sym>{symbols})\s?/\s?(?P<unit>{units})(?!\w)", price
        ),
    ]
    for pattern, said in _RATES[locale.language].items():
        rules.append(
            rule("rate of change", reason, rf"(?<![\w/])(?:{pattern})(?![\w/])", lambda m, s=said: rate(m, s))
        )
    return [
        *rules,
        *(_spanish_periods(locale) if locale.is_es else [*_english_periods(locale), _pence(locale)]),
    ]


def _full_year(text: str) -> int:
    return int(text) + (2000 if len(text) == 2 else 0)


def _english_periods(locale: Locale) -> list[Rule]:
    """Return the rules for 1Q25, 2H 2025, Q1'25, FY25, FY2024/25."""

    def period(match: re.Match) -> str:
        when = match["year"] or match["short"]
        said = f"{match['kind']}-{cardinal(int(match['n']), locale)}"
        return said + (f" {year(_full_year(when), locale)}" if when else "")

    def fiscal(match: re.Match) -> str:
        said = f"fiscal year {year(_full_year(match['year']), locale)}"
        if match["to"]:
            said += f" {year(_full_year(match['to']), locale)}"
        return said[0].upper() + said[1:] if starts(match) else said

    name, reason = "period", "a reporting period as it is said"
    year_of = r"(?:[\s'’-]?(?P<year>20\d\d)|['’]?(?P<short>\d\d))?(?!\w|[.,]\d)"
    return [
        rule(name, reason, rf"(?<![\w.,$€£])(?:(?P<n>[1-4])(?P<kind>Q)){year_of}", period),
        rule(name, reason, rf"(?<![\w.,$€£])(?:(?P<n>[12])(?P<kind>H))(?=[\s'’-]?\d\d){year_of}", period),
        rule(name, reason, r"(?<!\w)(?P<kind>[QH])(?P<n>[1-4])(?P<year>)['’](?P<short>\d\d)(?!\w)", period),
        rule(
            name, reason, r"(?<!\w)FY\s?['’]?(?P<year>20\d\d|\d\d)(?:[/-](?P<to>\d\d))?(?!\w|[.,]\d)", fiscal
        ),
    ]


def _spanish_periods(locale: Locale) -> list[Rule]:
    """Return the rules for 1T25, 2S 2025, el Q1 de 2026, 4T."""

    def period(match: re.Match) -> str:
        noun = "trimestre" if match["kind"] in ("T", "Q") else "semestre"
        said = f"{ordinal(int(match['n']), locale, before_noun=True)} {noun}"
        when = match["year"] or match["short"]
        return said + (f" de {year(_full_year(when), locale)}" if when else "")

    name, reason = "period", "a quarter or half of a year in words"
    four = r"(?:[\s'’-]|\sde\s)?(?P<year>20\d\d)"
    return [
        rule(
            name,
            reason,
            rf"(?<![\w.,$€£])(?P<n>[1-4])(?P<kind>[TQ])(?:{four}|['’]?(?P<short>\d\d))?(?!\w|[.,]\d)",
            period,
        ),
        rule(
            name,
            reason,
            rf"(?<![\w.,$€£])(?P<n>[12])(?P<kind>[SH])(?:{four}|['’]?(?P<short>\d\d))(?!\w|[.,]\d)",
            period,
        ),
        rule(
            name,
            reason,
            rf"(?<!\w)(?P<kind>Q)(?P<n>[1-4])(?:{four}|['’](?P<short>\d\d))?(?!\w|[.,]\d)",
            period,
        ),
        rule(
            name,
            reason,
            rf"(?<!\w)(?P<kind>T)(?P<n>[1-4])(?:{four}|['’](?P<short>\d\d))(?!\w|[.,]\d)",
            period,
        ),
    ]


def _pence(locale: Locale) -> Rule:
    n = number_pattern(locale)

    def say(match: re.Match) -> str | None:
        if match["a"] in _LINES and not _SHARE.search(left_of(match) + right_of(match)):
            return None
        first = amount(match["a"], None, locale)
        if match["b"]:
            return f"{first.words} to {amount(match['b'], None, locale).words} pence"
        return f"{first.words} {'penny' if first.one else 'pence'}"

    return rule(
        "U2 currency",
        "the unit in words",
        rf"(?<![\w.,$€£])(?P<a>{n})(?:p?{DASH}(?P<b>{n}))?p(?!\w|\.\s?m)",
        say,
    )


def scaled_units(locale: Locale) -> Rule:
    """Return the rule for a scale and a unit behind one number: 2m bpd, 3bn kWh."""
    n = number_pattern(locale)
    units = "|".join(re.escape(u) for u in sorted(UNITS, key=len, reverse=True) if len(u) > 2)

    def say(match: re.Match) -> str:
        noun = UNITS[match["unit"]]
        spoken = amount(
            match["a"], scale_of(match["scale"], locale), locale, noun.gender if locale.is_es else "n"
        )
        return with_noun(spoken, noun, locale, False)

    pattern = (
        rf"(?<![\w.,])(?P<a>{n})[ \u00a0]?(?P<scale>{scale_pattern(locale)})[ \u00a0](?P<unit>{units})(?!\w)"
    )
    return rule("U2 unit", "scale and unit in words", pattern, say)
