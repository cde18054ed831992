"""Rules for the numbers that are left: telephone numbers, fractions, ranges, scores, ordinals, years, codes, Roman."""

from __future__ import annotations

import re

from .amount_rules import sign_words
from .glossary import Glossary
from .languages import Locale
from .numbers import (
    ROMAN,
    cardinal,
    digit_words,
    noun_gender,
    number,
    number_pattern,
    ordinal,
    roman,
    split_number,
    year,
)
from .rules import Rule, left_of, right_of, rule

_FRACTIONS_ES = {
    2: "medio",
    3: "tercio",
    4: "cuarto",
    5: "quinto",
    6: "sexto",
    7: "séptimo",
    8: "octavo",
    9: "noveno",
}
_YEAR_BEFORE = (
    r"(?i:\b(?:in|since|by|from|until|till|of|during|before|after|year|years|early|late|mid|spring|summer|autumn|fall"
    r"|winter|through|circa|class of|back in|between|fiscal|for|around|the|[qh][1-4]|fy|pre|post)[\s-]|\()$"
)
_YEAR_NOT = r"\s(?:people|votes|jobs|points|miles|dollars|troops|soldiers|homes|tons|deaths|cases|feet|meters|euros)\b"
_YEAR_AFTER = (
    r"(?:\s(?:was|were|is|will|saw|had|has|season|election|elections|budget|World|Olympics|Olympic|report|model"
    r"|campaign|edition|film|study|Games|census|crash|crisis|election|vote|tax|fiscal)\b|[-–]\d|\)|,?\s(?:he|she|it|they|we|the)\b)"
)


def telephone_rules(locale: Locale) -> list[Rule]:
    """Return the rules for telephone numbers, and the three digits of an emergency call."""

    def groups(match: re.Match) -> str:
        parts = re.findall(r"\d+", match[0])
        start = locale.pick("plus ", "más ") if match[0].startswith("+") else ""
        return start + ", ".join(digit_words(p, locale) for p in parts)

    def dialled(match: re.Match) -> str:
        word = {"tel. ": "teléfono ", "Tel. ": "Teléfono "}.get(match["word"], match["word"])
        return word + ", ".join(digit_words(p, locale) for p in match["digits"].split())

    name, reason = "telephone", "a telephone number is read digit by digit, in its groups"
    call = r"call(?:ed|ing)?|dial(?:ed|ing)?|phone[ds]?"
    dials = r"\d{3}"
    patterns = [
        r"(?<![\w+])\+\d{1,3}(?:[ .-]\(?\d{2,4}\)?){2,5}(?!\w)",
        r"(?<![\w-])(?:1-)?\(?\d{3}\)?[ .-]\d{3}[.-]\d{4}(?![\w-])",
        r"(?<![\w-])\d{3}-\d{4}(?![\w-])",
    ]
    if locale.is_es:
        call = r"(?:llam|marc|marq)[a-záéíóúñ]*(?:\s(?:al|el))?|tel\.|teléfono|emergencias"
        dials = r"\d{3}(?: \d{2,3}){0,3}"
        patterns += [
            r"(?<![\w-])[6-9]\d{2}[ -]\d{2}[ -]\d{2}[ -]\d{2}(?![\w-])",
            r"(?<![\w-])[6-9]\d{2}[ -]\d{3}[ -]\d{3}(?=[.;!?]?\s*$|[.,;]?\s(?:o|y|u)\b|[,;])",
        ]
    return [
        rule(name, reason, rf"\b(?P<word>(?i:{call})\s)(?P<digits>{dials})(?![\w.,/%-]*\d)(?!\s?%)", dialled),
        *(rule(name, reason, p, groups) for p in patterns),
    ]


def fraction_rules(locale: Locale) -> list[Rule]:
    """Return the rules for fractions (3/4, 2½) and for what only looks like one (24/7, 9/11)."""

    def words(top: int, bottom: int) -> str | None:
        if not locale.is_es:
            if bottom == 2:
                return "one half" if top == 1 else None
            unit = {4: "quarter"}.get(bottom) or ordinal(bottom, locale)
            return f"{cardinal(top, locale)} {unit}{'' if top == 1 else 's'}"
        unit = _FRACTIONS_ES.get(bottom, "décimo")
        return f"{cardinal(top, locale, 'm')} {unit}{'' if top == 1 else 's'}"

    def mixed(whole: str, top: int, bottom: int) -> str | None:
        spoken = words(top, bottom)
        if spoken is None:
            return None
        if not whole:
            return spoken
        if not locale.is_es:
            spoken = spoken.replace("one half", "a half")
            return f"{cardinal(int(whole), locale)} and {spoken}"
        spoken = spoken.replace("un medio", "medio")
        return f"{cardinal(int(whole), locale)} y {spoken}"

    def plain(match: re.Match) -> str | None:
        top, bottom = int(match["top"]), int(match["bottom"])
        return mixed(match["whole"] or "", top, bottom) if 0 < top < bottom else None

    def sign(match: re.Match) -> str | None:
        top, bottom = _VULGAR[match["sign"]]
        return mixed(match["whole"] or "", top, bottom)

    def with_noun(match: re.Match) -> str | None:
        """Spanish puts the half after the noun: dos horas y media, dos años y medio."""
        gender = noun_gender(match.string, match.end("half"))
        if gender == "n":
            return None
        half = "media" if gender == "f" else "medio"
        return f"{cardinal(int(match['whole']), locale, gender)} {match['noun']} y {half}"

    def slashed(match: re.Match) -> str:
        return " ".join(cardinal(int(n), locale) for n in match.groups())

    name, reason = "fraction", "a fraction in words"
    signs = "".join(_VULGAR)
    halves = rule(
        name, reason, r"(?<![\w.,/])(?P<whole>\d{1,3})(?P<half>\s?½|\s1/2)\s(?P<noun>[a-záéíóúñ]+)", with_noun
    )
    return [
        *([halves] if locale.is_es else []),
        rule(
            name,
            reason,
            r"(?<![\w.,/])(?:(?P<whole>\d{1,3})\s)?(?P<top>\d)/(?P<bottom>[2-9]|10)(?![\w/]|[.,]\d)",
            plain,
        ),
        rule(name, reason, rf"(?<![\w.,/])(?P<whole>\d{{1,3}})?\s?(?P<sign>[{signs}])", sign),
        rule(name, "two numbers, no fraction", r"(?<![\w.,/])(\d{1,3})/(\d{1,3})(?![\w/]|[.,]\d)", slashed),
    ]


_VULGAR = {
    "½": (1, 2),
    "⅓": (1, 3),
    "⅔": (2, 3),
    "¼": (1, 4),
    "¾": (3, 4),
    "⅕": (1, 5),
    "⅖": (2, 5),
    "⅛": (1, 8),
    "⅜": (3, 8),
}


def order_rules(locale: Locale) -> list[Rule]:
    """Return the rules for ordinals and for "No. 5"."""

    def english(match: re.Match) -> str:
        return ordinal(int(match["n"].replace(",", "")), locale)

    def spanish(match: re.Match) -> str:
        mark = match["mark"].lstrip(".")
        gender = "f" if mark[-1] in "ªa" else "m"
        noun = re.match(r"\s+[a-záéíóúñ]", right_of(match))
        short = mark == "er" or (bool(noun) and noun_gender(match.string, match.end()) == "m")
        return ordinal(int(match["n"]), locale, gender, short)

    def numero(match: re.Match) -> str:
        word = locale.pick("number", "número") + ("s" if re.match(r"n(?:os|úms|ros)", match[0], re.I) else "")
        return f"{word.capitalize() if match[0][0] == 'N' and not left_of(match).strip() else word} "

    rules = [
        rule(
            "number sign",
            "the sign in words",
            r"(?<!\w)(?:[Nn]\.?\s?[º°]\.?|[Nn]\.o|[Nn]úms?\.|[Nn]ros?\.|No\.|#)\s?(?=\d)"
            if locale.is_es
            else r"(?<!\w)(?:[Nn]os?\.|№|[Nn]º|#)\s?(?=\d)",
            numero,
        )
    ]
    page = locale.pick("page ", "página ")
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
    nouns = r"World War|Super Bowl|Chapter|Part|Act|Volume|Phase|Type|Article|Title|Class|Round|Book|Episode|Level"
    if locale.is_es:
        nouns = r"[Cc]apítulo|[Tt]omo|[Tt]ítulo|[Ff]ase|[Aa]cto|[Aa]rtículo|[Pp]arte|[Tt]ipo|[Vv]olumen|[Cc]ap\.|[Aa]rt\.|[Vv]ol\.|Super Bowl"
        followed = r"(?=\s(?:Guerra|Congreso|Cumbre|Edición|edición|Foro|Concurso|Festival|Premio|Copa|Liga|Asamblea|Encuentro|Jornada|Conferencia|República|Feria|Simposio)\b)"
        rules.append(rule(name, reason, rf"\b{numeral}\b{followed}", before))
    rules.append(rule(name, reason, rf"\b(?P<noun>{nouns})\s{numeral}\b", counted))
    sequel = (
        r"\b(?P<noun>[A-ZÁÉÍÓÚÑ][a-záéíóúñ]+)\s(?P<roman>(?=[IVX]{2,}\b)X{0,3}(?:IX|IV|V?I{0,3})(?<=[IVX]))\b"
    )
    rules.append(rule(name, reason, sequel, counted))
    return rules


def between_rules(locale: Locale) -> list[Rule]:
    """Return the rules for two numbers with a sign between: ranges, scores, seasons, ratios, sizes, versions."""
    n = number_pattern(locale)
    to = locale.pick("to", "a")

    def one(text: str, gender: str = "n") -> str:
        return number(*split_number(text, locale), locale, gender)

    def span(match: re.Match) -> str:
        first, second = match["a"], match["b"]
        if all(re.fullmatch(r"(?:1[1-9]|20)\d\d", x) for x in (first, second)):
            return f"{year(int(first), locale)} {to} {year(int(second), locale)}"
        if not locale.is_es and re.fullmatch(r"(?:1[1-9]|20)\d\d", first) and re.fullmatch(r"\d\d", second):
            return f"{year(int(first), locale)} to {year(int(first[:2] + second), locale)}"
        if first == second == "50":
            return locale.pick("fifty-fifty", "cincuenta cincuenta")
        gender = noun_gender(match.string, match.end()) if locale.is_es else "n"
        return f"{one(first, gender)} {to} {one(second, gender)}"

    def season(match: re.Match) -> str:
        return f"{year(int(match[1]), locale)} {cardinal(int(match[2]), locale)}"

    def version(match: re.Match) -> str:
        return locale.pick(" point ", " punto ").join(cardinal(int(p), locale) for p in match[0].split("."))

    def ratio(match: re.Match) -> str:
        return f"{cardinal(int(match[1]), locale)} {to} {cardinal(int(match[2]), locale)}"

    def product(match: re.Match) -> str:
        return f"{one(match['a'])} {locale.pick('by', 'por')} {one(match['b'])}"

    word = "a word stands for the sign between two numbers"
    versions = r"(?<![\w.,])\d{1,3}(?:\.\d{1,2}){2,}(?![\w]|[.,]\d)"
    spans = rf"(?<![\w.,-])(?P<a>{n})\s?[-–]\s?(?P<b>{n})(?![\w-]|[.,]\d)"
    products = rf"(?<![\w.,])(?P<a>{n})\s?[x×]\s?(?P<b>{n})(?!\w)"
    return [
        rule("season", "two years", r"(?<![\w.,/])((?:19|20)\d\d)/(\d\d)(?![\w/]|[.,]\d)", season),
        rule("version", "every part of it as a number", versions, version),
        rule("range", word, spans, span),
        rule("ratio", word, r"(?<![\w:.,])(\d{1,3}):(\d{1,3})(?![\w:])", ratio),
        rule("product", word, products, product),
    ]


def plain_rules(locale: Locale) -> list[Rule]:
    """Return the rules for years and every other number."""
    n = number_pattern(locale)

    def plain(match: re.Match) -> str:
        if not match["sign"] and not locale.is_es and _is_year(match):
            return year(int(match["n"]), locale)
        gender = noun_gender(match.string, match.end("n")) if locale.is_es else "n"
        return sign_words(match["sign"], locale) + number(*split_number(match["n"], locale), locale, gender)

    def bare(match: re.Match) -> str:
        return number("0", match["n"], locale).partition(" ")[2]

    def hundreds(match: re.Match) -> str:
        return {"100": "hundreds", "1000": "thousands"}[match["n"]]

    reason = "a number in words"
    return [
        *([] if locale.is_es else [rule("number", reason, r"(?<![\w.,$€£])(?P<n>1000?)s\b", hundreds)]),
        rule("number", reason, rf"(?<![\w.,])(?P<sign>(?<!\d\s)[-−+])?(?P<n>{n})(?![\w])", plain),
        rule("number", reason, r"(?<![\w.,])[.,](?P<n>\d+)", bare),
        rule("number", reason, rf"(?P<sign>)(?P<n>{n})", plain),
    ]


def _is_year(match: re.Match) -> bool:
    """Return whether four English digits are a year, by the words around them."""
    value = match["n"]
    if not re.fullmatch(r"1\d{3}|20\d\d", value) or re.match(_YEAR_NOT, right_of(match, "n")):
        return False
    return bool(re.search(_YEAR_BEFORE, left_of(match, "n")) or re.match(_YEAR_AFTER, right_of(match, "n")))


_CODE_BEFORE = r"\b(?:Boeing|Flight|Route|Highway|Airbus|Lufthansa|Interstate)\s"


def code_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return the rules for letters with digits: G7, F-16, COVID-19, CO2, 5G, Boeing 737."""

    def digits(text: str) -> str:
        value = int(text)
        if text[0] == "0":
            return digit_words(text, locale)
        if len(text) == 4 and 1900 <= value <= 2099:
            return year(value, locale)
        if not locale.is_es and len(text) == 3 and value % 100:
            rest = (
                f"oh {cardinal(value % 100, locale)}" if value % 100 < 10 else cardinal(value % 100, locale)
            )
            return f"{cardinal(value // 100, locale)} {rest}"
        return cardinal(value, locale)

    def mixed(match: re.Match) -> str:
        said = ""
        for run in re.findall(r"[A-ZÑ]+|\d+", match["code"]):
            word = run.isalpha() and glossary.is_word(run, locale.language)
            # A hyphen keeps a letter a letter: engines read "A three" with an article.
            said += (" " if word or said.endswith(" ") else "-") if said else ""
            said += digits(run) if run.isdigit() else run + " " if word else "-".join(run)
        return " ".join(said.split())

    def flight(match: re.Match) -> str:
        return match["word"] + digits(match["n"])

    reason = "letters one by one, the number as a number"
    return [
        rule(
            "code",
            reason,
            r"(?<![\w.-])(?P<code>[A-ZÑ]{1,6}-?\d{1,4}(?:-?[A-Z]{1,2}\d{0,4}){0,2})(?!\w|\.\d)",
            mixed,
        ),
        rule("code", reason, r"(?<![\w.,])(?P<code>\d{1,3}[A-Z]{1,2}|\d{1,2}-[A-Z])(?![\w-])", mixed),
        rule("code", "read as it is called", rf"(?P<word>{_CODE_BEFORE})(?P<n>\d{{3}})(?![\w.,]*\d)", flight),
    ]
