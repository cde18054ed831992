"""Rules for ordinals, "No. 5" and Roman numbers."""

from __future__ import annotations

import re

from .glossary import Glossary
from .languages import Locale
from .numbers import ROMAN, cardinal, noun_gender, ordinal, roman
from .rules import Rule, left_of, right_of, rule


def order_rules(locale: Locale) -> list[Rule]:
    """Return the rules for ordinals and for "No. 5"."""

    def english(match: re.Match) -> str:
        return ordinal(int(match["n"].replace(",", "")), locale)

    def spanish(match: re.Match) -> str:
        mark = match["mark"].lstrip(".")
        gender = "f" if mark[-1] in "ªa" else "m"
        noun = re.match(r"\s+(?!izq|izda|dcha|centro)[a-záéíóúñ]", right_of(match))
        short = mark == "er" or (bool(noun) and noun_gender(match.string, match.end()) == "m")
        return ordinal(int(match["n"]), locale, gender, short)

    def numero(match: re.Match) -> str:
        word = locale.pick("number", "número") + (
            "s" if re.match(r"n(?:\.?os|úms|ros)", match[0], re.I) else ""
        )
        return f"{word.capitalize() if match[0][0] == 'N' and not left_of(match).strip() else word} "

    rules = [
        rule(
            "number sign",
            "the sign in words",
            r"(?<!\w)(?:[Nn]\.?\s?[º°]\.?|[Nn]\.?os|[Nn]\.o|[Nn]úms?[.,]?|[Nn]ros?\.|No\.|#)\s?(?=\d)"
            if locale.is_es
            else r"(?<!\w)(?:[Nn]os?\.|№|[Nn]º|#)\s?(?=\d)|(?<!\w)No\s(?=\d{1,3}\b(?!\s[a-z]+s\b))",
            numero,
        )
    ]
    page = locale.pick("page ", "página ")
    mark = locale.pick("kilometer ", "kilómetro ")
    rules.append(rule("unit", "a place on a road", r"\b[Kk]m\s(?=\d)", lambda m: mark))
    rules.append(
        rule("abbreviation", "a short form is said in full", r"(?<![\w.])p\.\s?(?=\d)", lambda m: page)
    )
    if locale.is_es:
        pattern = r"(?<![\w.,])(?P<n>\d{1,3})(?P<mark>\.?[ºª°](?![CF])|\.?(?:er|ro|ra|do|da|to|ta|mo|ma|vo|va|no|na)\b)"
        return [*rules, rule("ordinal", "an ordinal in words", pattern, spanish)]
    return [
        *rules,
        rule(
            "ordinal",
            "an ordinal in words",
            r"(?<![\w.,])(?P<n>\d{1,3}(?:,\d{3})*|\d+)(?:st|nd|rd|th)\b",
            english,
        ),
    ]


def roman_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return the rules for Roman numbers: ordinals of rulers, numbers of chapters, wars, sequels, editions."""
    rulers = "|".join(re.escape(n) for n in sorted(glossary.rulers, key=len, reverse=True))
    numeral = rf"(?P<roman>(?=[IVXL]+\b){ROMAN})"

    def ruler(match: re.Match) -> str | None:
        value = roman(match["roman"])
        if not locale.is_es:
            return f"{match['name']} the {ordinal(value, locale)}"
        feminine = match["name"].endswith(("a", "Isabel"))
        words = ordinal(value, locale, "f" if feminine else "m") if value <= 10 else cardinal(value, locale)
        return f"{match['name']} {words}"

    def counted(match: re.Match) -> str:
        noun = glossary.abbreviations[locale.language].get(match["noun"], match["noun"])
        return f"{noun} {cardinal(roman(match['roman']), locale)}"

    def before(match: re.Match) -> str | None:
        feminine = noun_gender(match.string, match.end()) == "f"
        return ordinal(roman(match["roman"]), locale, "f" if feminine else "m", True)

    name, reason = "Roman number", "a Roman number in words"
    rules = [rule(name, reason, rf"\b(?P<name>{rulers})\s{numeral}\b", ruler)]
    nouns = r"World War|Super Bowl|Chapter|Part|Act|Volume|Phase|Type|Article|Title|Class|Round|Book|Episode|Level|[Vv]ol\.|Scene"
    if locale.is_es:
        nouns = r"[Cc]apítulo|[Tt]omo|[Tt]ítulo|[Ff]ase|[Aa]cto|[Aa]rtículo|[Pp]arte|[Tt]ipo|[Vv]olumen|[Cc]ap\.|[Aa]rt\.|[Vv]ol\.|Super Bowl"
        followed = (
            r"(?=\s(?:Guerra|Congreso|Cumbre|Edición|edición|Foro|Concurso|Festival|Premio|Copa|Liga|Asamblea|Encuentro|Jornada|Conferencia|República|Feria|Simposio|Legislatura|Bienal|Certamen|Torneo|Vuelta|Gala|Juegos"
            r"|Semana|Salón|Ciclo|Premios|Trofeo|Memorial|Dinastía|Internacional|Centenario|Aniversario|Plan|Convenio"
            r"|Olimpiada|Flota|Región|Zona|Curso|Exposición)\b)"
        )
        rules.append(rule(name, reason, rf"\b{numeral}\b{followed}", before))
    rules.append(rule(name, reason, rf"\b(?P<noun>{nouns})\s{numeral}\b", counted))
    # Two letters at least: an I by itself is a word, an IV after an article a drip.
    small = r"(?P<roman>(?=[IVX]{2,}\b)X{0,3}(?:IX|IV|V?I{0,3})(?<=[IVX]))\b"
    sequel = rf"\b(?P<noun>[A-ZÁÉÍÓÚÑ][a-záéíóúñ]+)\s{small}"
    alone = (
        rf"(?<!\w)(?<!\ba )(?<!\ban ){small}(?!['’.-]\w|\s(?:drip|therapy|fluids?|line|antibiotics?|bag)\b)"
    )
    rules.append(rule(name, reason, sequel, counted))
    rules.append(rule(name, reason, alone, lambda m: cardinal(roman(m["roman"]), locale)))
    return rules
