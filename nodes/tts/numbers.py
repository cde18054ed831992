"""Numbers as words, English and Spanish: cardinals, decimals, ordinals, years, digits one by one.

The words come from unicode-rbnf (CLDR's spell-out rules); gender, decimals as they are read in the news, and the
British "and" are added here. Values are digits as they were written, never floats: 3.10 keeps its zero.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from ..core.audio import MissingPackage
from .languages import Locale

INSTALL = "pip install unicode-rbnf sentencex"
LARGEST = 10**15
"""From here on a number is read digit by digit: nobody follows a quadrillion, and CLDR's rules end."""

_UNIT = {"n": "spellout-numbering", "m": "spellout-cardinal-masculine", "f": "spellout-cardinal-feminine"}
_TENTHS_ES = {11: ("undécimo", "undécima"), 12: ("duodécimo", "duodécima")}


@cache
def _rbnf(language: str) -> Any:
    try:
        from unicode_rbnf import RbnfEngine
    except ImportError as e:
        raise MissingPackage(f"numbers in words need the extra 'tts' ({e}): {INSTALL}") from e
    return RbnfEngine.for_language(language)


def cardinal(value: int, locale: Locale, gender: str = "n") -> str:
    """Return an integer in words; gender "m" or "f" before a Spanish noun, "n" on its own (un, una, uno)."""
    if abs(value) >= LARGEST:
        return digit_words(str(value), locale)
    if value < 0:
        return f"{locale.pick('minus', 'menos')} {cardinal(-value, locale, gender)}"
    if not locale.is_es:
        words = _rbnf("en").format_number(value).text
        return (
            re.sub(r"hundred (?!thousand|million|billion|trillion)", "hundred and ", words)
            if locale.british
            else words
        )
    if gender == "f":  # CLDR leaves what stands before "mil" masculine: doscientas mil, veintiuna mil
        millions, rest = divmod(value, 10**6)
        thousands, units = divmod(rest, 1000)
        parts = [_spanish(millions * 10**6, "m")] if millions else []
        if thousands:
            parts.append("mil" if thousands == 1 else f"{_spanish(thousands, 'f')} mil")
        if units or not parts:
            parts.append(_spanish(units, "f"))
        return " ".join(parts)
    return _spanish(value, gender)


def _spanish(value: int, gender: str) -> str:
    return _rbnf("es").format_number(value).text_by_ruleset[_UNIT[gender]]


def digit_words(text: str, locale: Locale) -> str:
    """Return the digits of `text` one by one."""
    return " ".join(cardinal(int(c), locale) for c in text if c.isdecimal())


def number(whole: str, fraction: str, locale: Locale, gender: str = "n") -> str:
    """Return digits before and after the decimal mark in words: "forty-two point five", "cuarenta y dos coma cinco".

    English reads decimals digit by digit. Spanish reads up to three as a number (coma setenta y cinco), zeros in
    front one by one (coma cero cinco), longer ones digit by digit. A Spanish decimal point is said "punto".
    """
    whole = whole or "0"
    if len(whole) > 1 and whole[0] == "0":  # 007, a code
        spoken = digit_words(whole, locale)
    else:
        spoken = cardinal(int(whole), locale, "n" if fraction else gender)
    if not fraction:
        return spoken
    if not locale.is_es:
        return f"{spoken} point {digit_words(fraction, locale)}"
    bare = fraction.lstrip("0")
    zeros = ["cero"] * (len(fraction) - len(bare))
    if len(fraction) > 3:
        tail = [digit_words(bare, locale)] if bare else []
    else:
        tail = [cardinal(int(bare), locale)] if bare else []
    return " ".join([spoken, "coma" if locale.decimal == "," else "punto", *zeros, *tail])


def ordinal(value: int, locale: Locale, gender: str = "m", before_noun: bool = False) -> str:
    """Return an ordinal; before a masculine noun Spanish drops the last vowel of primero and tercero."""
    from unicode_rbnf import FormatPurpose

    engine = _rbnf(locale.language)
    forms = engine.format_number(value, FormatPurpose.ORDINAL).text_by_ruleset
    if not locale.is_es:
        words = forms["spellout-ordinal"]
        return (
            re.sub(r"hundred (?!thousand|million|billion)", "hundred and ", words)
            if locale.british
            else words
        )
    if value in _TENTHS_ES:
        return _TENTHS_ES[value][gender == "f"]
    words = forms["spellout-ordinal-feminine" if gender == "f" else "spellout-ordinal-masculine"]
    if before_noun and gender == "m":
        words = re.sub(r"(primer|tercer)o$", r"\1", words)
    return words


def year(value: int, locale: Locale) -> str:
    """Return a year: "nineteen ninety-nine", "two thousand five", "twenty twenty-six"; Spanish is a plain number."""
    if locale.is_es or not 1000 <= value <= 9999:
        return cardinal(value, locale)
    from unicode_rbnf import FormatPurpose

    return _rbnf("en").format_number(value, FormatPurpose.YEAR).text.replace("oh-", "oh ")


_GROUPS = "\u00a0\u202f\u2009’"


def number_pattern(locale: Locale) -> str:
    """Return the pattern of a number as it is written: groups of three, or plain digits, and an optional decimal part.

    A plain space groups in Spanish only ("13 999"); English has it between two numbers ("in May 200 people").
    """
    marks = f".,{_GROUPS}" + (" " if locale.is_es else "'")
    spaced = "" if locale.is_es else r"\d{1,3}(?: \d{3}){2,}(?![\d ]*\d)(?:[.,]\d+)?|"
    return rf"(?:{spaced}\d{{1,3}}(?:[{marks}]\d{{3}})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)?)"


def split_number(text: str, locale: Locale) -> tuple[str, str]:
    """Return (digits before, digits after the decimal mark) of a number as `locale` writes it.

    Of two kinds of mark the last is the decimal one. A single mark before exactly three digits is the grouping
    mark of the locale or its decimal mark; before any other count it is decimal, whoever wrote it (42,5 in
    English, 70.3 in Spanish). Several of one mark are groups.
    """
    text = re.sub(r"[^\d.,]", "", text)
    marks = [c for c in text if c in ".,"]
    if not marks:
        return text, ""
    if len(set(marks)) == 2:
        at = max(text.rfind("."), text.rfind(","))
        return re.sub(r"\D", "", text[:at]), text[at + 1 :]
    if len(marks) > 1:
        return re.sub(r"\D", "", text), ""
    whole, fraction = text.split(marks[0])
    grouped = len(fraction) == 3 and 1 <= len(whole) <= 3 and whole != "0" and marks[0] != locale.decimal
    return (whole + fraction, "") if grouped else (whole, fraction)


def is_one(whole: str, fraction: str) -> bool:
    """Return whether a number is exactly 1: the only one with a singular noun."""
    return int(whole or "0") == 1 and not fraction


ROMAN = r"(?:M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?<=[IVXLCDM]))"
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman(text: str) -> int:
    """Return the value of a Roman number written in capitals."""
    values = [_ROMAN_VALUES[c] for c in text]
    return sum(-v if v < n else v for v, n in zip(values, [*values[1:], 0], strict=True))


_FEMININE = re.compile(
    r"(?:[^\W\d_]+(?:as|a|ciones|siones|ción|sión|dades|dad|tades|tad|tudes|tud|eces|iones)"
    r"|mujeres|noches|tardes|partes|clases|calles|leyes|redes|luces|voces|muertes|sedes|fases|bases|series|manos|mano"
    r"|fotos|foto|motos|moto|crisis|tesis|dosis|hipótesis|gente|torres?|llaves?|frases?|naves?|claves?|cárcel(?:es)?|señal(?:es)?|flor(?:es)?"
    r"|[^\W\d_]*umbres?|fuentes?|pirámides?|raíces|imagen|piel(?:es)?|serpientes?|naciones|imágenes|mujer|noche|tarde|parte|clase|calle|ley|red|vez|serie|fase|nubes)$",
    re.IGNORECASE,
)
_MASCULINE_A = frozenset(
    """día días problema problemas programa programas sistema sistemas tema temas mapa mapas planeta planetas idioma
    idiomas clima climas poeta poetas kilogramas drama dramas diploma diplomas aviones camiones millones billones
    trillones peces meses euros""".split()
)
_FUNCTION = frozenset(
    """de del la las el los y o u e a al en con por para que es son fue fueron era ha han se su sus un una como más
    menos contra sobre entre hasta desde ante tras según no ya cuando donde pero si ni sin está están mañana veces
    hora horas""".split()
) - {"veces", "hora", "horas"}
_SECOND = re.compile(r"\s(?:y|o|u|a)\s\d[\d.,]*(?=\s)")
_NEXT_WORD = re.compile(r"[\s\u00a0]+([^\W\d_]+)")


def noun_gender(text: str, end: int) -> str:
    """Return the gender for a Spanish number that ends at `end`: of the noun that follows, "n" if none does."""
    second = _SECOND.match(text, end)
    if second:  # 200 y 300 páginas
        end = second.end()
    match = _NEXT_WORD.match(text, end)
    if match is None or match[1].lower() in _FUNCTION:
        return "n"
    word = match[1].lower()
    if word in ("mil", "millones", "millón"):
        return noun_gender(text, match.end()) if word == "mil" else "m"
    return "f" if _FEMININE.match(word) and word not in _MASCULINE_A else "m"
