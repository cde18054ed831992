"""Rules for names: indices (U3), acronyms against initialisms (U4), fixed pronunciations, abbreviations, brands (U7)."""

from __future__ import annotations

import re

from .glossary import Glossary, pronounceable
from .languages import PLAIN, Locale
from .rules import Rule, full_stop, left_of, right_of, rule, starts

_CAPS = "A-ZÁÉÍÓÚÑÜ"
_DETERMINER = re.compile(
    r"\b(?:the|an?|this|that|its|each|every|el|la|los|las|un|una|del|al|su|este|ese|índice|index|new|nuevo)\s+$",
    re.IGNORECASE,
)
_INDEX_NOUN = re.compile(
    r"\s+(?:index|índice|indices|futures?|futuros|etfs?|companies|company|stocks?|funds?|constituents|firms|options)\b",
    re.IGNORECASE,
)
_FIRM = r"\s(?:Global|Dow|Capital|Ratings|Analytics|Mobility)\b"
"""Behind S&P: the firm, not its index."""
_CATEGORY = re.compile(
    r"\b(?:firma|empresa|compañía|grupo|marca|cadena|aerolínea|plataforma|red social|banco|fabricante|gigante"
    r"|tecnológica|aplicación|app|multinacional|filial|consultora|startup|buscador|automovilística|su|de la|la|el|un"
    r"|una)\s+$",
    re.IGNORECASE,
)


def _alternatives(names: list[str]) -> str:
    return "|".join(re.escape(n) for n in sorted(names, key=len, reverse=True))


def _squeezed(name: str) -> str:
    """Return what the spellings of an index have in common."""
    return re.sub(r"[\s-]", "", name).casefold() if any(map(str.isdigit, name)) else name


def index_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return U3: an index with its article and the word "index", unless the sentence has them."""

    known = {_squeezed(name): name for name in glossary.indices}

    def say(match: re.Match) -> str:
        said = glossary.indices[known[_squeezed(match[0])]].get(locale.language, match[0])
        before, after = left_of(match), right_of(match)
        if match[0] == "S&P" and re.match(_FIRM, after):
            return said
        determined = _DETERMINER.search(before)
        if re.search(r"\b(?:index|índice)\s+(?:de\s+)?$", before, re.IGNORECASE):
            return said
        first = starts(match)
        if locale.is_es:
            if determined:  # "el S&P 500" keeps its article and gets the noun
                word = determined[0].strip().lower()
                return (
                    said if word not in ("el", "del", "al") or _INDEX_NOUN.match(after) else f"índice {said}"
                )
            return f"{'El' if first else 'el'} índice {said}"
        noun = "" if _INDEX_NOUN.match(after) or re.match("['’]s", after) else " index"
        if determined:
            return said + (noun if determined[0].strip().lower() == "the" else "")
        return f"{'The' if first else 'the'} {said}{noun}"

    # S&P500 and IBEX-35 are S&P 500 and IBEX 35; a number makes capitals free: ibex 35
    names = (
        (re.sub(r"\\? (?=\d)|\\?-(?=\d)", r"[\\s-]?", re.escape(name)), any(map(str.isdigit, name)))
        for name in sorted(glossary.indices, key=len, reverse=True)
    )
    either = "|".join(f"(?i:{name})" if free else name for name, free in names)
    pattern = rf"(?<!\w)(?:{either})(?!\w|[.,]\d)"
    return [rule("U3 index", "an index is said as one, its number in words", pattern, say)]


def fixed_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return the rules for the glossary's fixed pronunciations."""
    table = glossary.say[locale.language]
    if not table:
        return []

    def say(match: re.Match) -> str:
        said = table[match[0]]
        return said + full_stop(match, said)

    # A name that ends in a full stop may be followed by anything, one that ends in a letter by no letter.
    ending = "|".join(
        re.escape(k) + ("" if k[-1] == "." else r"(?!\w)") for k in sorted(table, key=len, reverse=True)
    )
    return [rule("glossary", "said as the glossary has it", rf"(?<![\w.])(?:{ending})", say)]


def brand_rules(locale: Locale, glossary: Glossary, with_noun: bool) -> list[Rule]:
    """Return the rules for brands: their pronunciation, and U7's category noun if asked for."""
    names = _alternatives(list(glossary.brands))
    if not names:
        return []

    def say(match: re.Match) -> str | None:
        brand = glossary.brands[match["name"]]
        said = brand["say"].get(locale.language, match["name"])
        noun = brand["noun"].get(locale.language) if with_noun else None
        before = left_of(match, "name")
        if noun is None or _CATEGORY.search(before):
            return None if said == match["name"] else (match["prep"] or "") + said
        prep = match["prep"] or ""
        if noun.startswith("el ") and prep:
            return f"{prep.strip()}l {noun[3:]} {said}"  # del fabricante, al fabricante
        start = noun[0].upper() + noun[1:] if starts(match, "name") else noun
        return f"{prep}{start} {said}"

    name, reason = "U7 brand", "a foreign name is announced by what it is"
    return [rule(name, reason, rf"(?P<prep>\b(?:de|a)\s)?(?<![\w-])(?P<name>{names})(?![\w-])", say)]


def abbreviation_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return the rules for short forms with a full stop, initials among them."""
    given = glossary.abbreviations[locale.language]
    # "approx." stands at the start of a sentence too
    table = {
        k[0].upper() + k[1:]: v[0].upper() + v[1:] for k, v in given.items() if k[0].islower() and len(k) > 2
    } | dict(given)
    ordered = sorted(table, key=len, reverse=True)

    def say(match: re.Match) -> str | None:
        said = table[match[0]]
        if match[0] == "v." and not re.match(r"\s+[A-Z]", right_of(match)):
            return None
        if starts(match):
            said = said[0].upper() + said[1:]
        if match[0].endswith("/") or match[0] == "w/o":
            return said + ("" if right_of(match)[:1] in ("", " ") else " ")
        return said + full_stop(match, said)

    def dotted(match: re.Match) -> str:
        letters = re.findall(rf"[{_CAPS}]", match[0])
        said = "-".join(letters)
        return said + full_stop(match, said)

    def initial(match: re.Match) -> str | None:
        word = re.match(r"[^\W\d_]+", right_of(match))
        if word and word[0].lower() in PLAIN[locale.language]:  # Plan B. It failed.
            return None
        # A letter A by itself would be an article to an engine.
        return "A-" if match[0][0] == "A" and not locale.is_es else f"{match[0][0]} "

    reason = "a short form is said in full"
    more = rf"(?!\s?[{_CAPS}]\.)"  # S. A. is a company, S. A. R. a princess
    endings = (
        (more if k[0].isupper() and k[1] == "." else "")
        if k[-1] in "./" and k != "s/"
        else r"(?=\s)"
        if k == "s/"
        else r"(?!\w|\.\w)"
        for k in ordered
    )
    keys = "|".join(re.escape(k) + end for k, end in zip(ordered, endings, strict=True))
    rules = [rule("abbreviation", reason, rf"(?<![\w./-])(?:{keys})", say)]
    spelled = "letters one by one"
    return [
        *rules,
        rule("U4 initialism", spelled, rf"(?<![\w.])[{_CAPS}]\.(?:\s?[{_CAPS}]\.)+", dotted),
        rule(
            "initial", "an initial has no stop after it", rf"(?<![\w.-])[{_CAPS}]\.\s?(?=[{_CAPS}])", initial
        ),
    ]


def acronym_rules(locale: Locale, glossary: Glossary) -> list[Rule]:
    """Return U4: capitals that are no word are spelled."""
    common = PLAIN[locale.language]

    def say(match: re.Match) -> str | None:
        capitals, plural = match["caps"], match["plural"]
        if glossary.is_word(capitals, locale.language):
            return None
        listed = capitals in glossary.spell
        if capitals.lower() in common and (locale.is_es or not listed):  # UN is an article in Spanish
            return None
        if _shouted(match, glossary, locale):
            return None
        return "-".join(capitals) + ("'s" if plural else "")

    def joined(match: re.Match) -> str:
        word = "and" if not locale.is_es else "y"
        plural = "'s" if match["plural"] else ""
        return f"{'-'.join(match['a'])} {word} {'-'.join(match['b'])}{plural}"

    reason = "an initialism is spelled, an acronym said"
    return [
        rule(
            "U4 initialism",
            reason,
            rf"(?<!\w)(?P<a>[{_CAPS}]{{1,3}})&(?P<b>[{_CAPS}]{{1,3}})(?P<plural>s)?(?!\w)",
            joined,
        ),
        rule(
            "U4 initialism",
            reason,
            rf"(?<![\w&])(?P<caps>[{_CAPS}]{{2,6}})(?P<plural>['’]?s['’]?)?(?!\w|&\w)",
            say,
        ),
    ]


def _shouted(match: re.Match, glossary: Glossary, locale: Locale) -> bool:
    """Return whether the capitals are those of a headline: next to a longer word in capitals that is no acronym."""
    left, right = left_of(match), right_of(match)
    around = re.findall(r"[^\W\d_]{2,}", re.sub(r"\[[^\]]*\]", "", f"{left}{match[0]}{right}"))
    if not any(w[1:].islower() for w in around):
        known = glossary.words["any"] | glossary.words[locale.language]
        plain = [w for w in around if len(w) > 3 and w not in known and pronounceable(w)]
        if len(plain) > 1:
            return match["caps"] not in glossary.spell or match["caps"] in ("IT", "US", "WHO")
    if match["caps"] in glossary.spell:
        return False
    before = re.search(rf"((?:[{_CAPS}]{{2,}}\W{{1,2}})*)$", left)[0]
    after = re.match(rf"((?:\W{{1,2}}[{_CAPS}]{{2,}})*)", right)[0]
    words = re.findall(rf"[{_CAPS}]{{5,}}", f"{before} {after}")
    return any(w not in glossary.words["any"] and w not in glossary.words[locale.language] for w in words)
