"""The glossary: how names are said. One JSON comes with the pack, a user's own adds to it and wins over it.

Fields, all optional (`version` is 1):
- words: {"en" | "es" | "any": [...]}: capitals said as a word (NASA)
- spell: [...]: capitals spelled letter by letter (M-I-T), whatever they look like
- say: {"en" | "es": {written: said}}: any other pronunciation
- abbreviations: {"en" | "es": {written: in full}}: matched as written; the full stop is part of it
- indices: [{"name": ..., "say": {"en": ..., "es": ...}}]: market indices, said with "index"
- brands: [{"name": ..., "noun": {"es": "la firma"}, "say": {...}}]: names that rule U7 puts a noun before
- rulers: [...]: first names whose Roman number is an ordinal (Charles III)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

DEFAULT = Path(__file__).parent / "words" / "glossary.json"
VERSION = 1
_LANGUAGES = ("en", "es")
_STARTS = frozenset(
    "bl br ch cl cr dr fl fr gl gr kl kr ll ph pl pr sc sh sk sl sm sn sp st sw th tr tw wr".split()
)
_ENDS = frozenset(
    "ck ct ft ld lf lk lm ln lp ls lt mp nc nd ng nk ns nt nx ps pt rb rc rd rf rk rm rn rp rs rt sk sp ss st th ts ch sh".split()
)


@dataclass(frozen=True, eq=False)
class Glossary:
    """What the glossary files say; see the module. Compared by identity, so rules can be kept per glossary."""

    words: Mapping[str, frozenset[str]]
    spell: frozenset[str]
    say: Mapping[str, Mapping[str, str]]
    abbreviations: Mapping[str, Mapping[str, str]]
    indices: Mapping[str, Mapping[str, str]]
    brands: Mapping[str, Mapping[str, Mapping[str, str]]]
    rulers: frozenset[str]

    def is_word(self, capitals: str, language: str) -> bool:
        """Return whether `capitals` are said as a word: listed so, or not spelled by list and easy to say.

        Up to three letters are spelled unless listed. Longer ones are words if they have a vowel, no three
        consonants in a row, no double letter in front and a beginning and an end that syllables have.
        """
        if capitals in self.words[language] or capitals in self.words["any"]:
            return True
        return capitals not in self.spell and len(capitals) > 3 and pronounceable(capitals)


def pronounceable(capitals: str) -> bool:
    """Return whether letters look like a word in either language."""
    text = capitals.lower()
    vowels = "aeiouáéíóú"
    if text[0] == text[1] or re.search(rf"[^{vowels}]{{3}}|[{vowels}]{{3}}|^y[^{vowels}]", text):
        return False
    start = re.match(rf"[^{vowels}]*", text)[0]
    end = re.search(rf"[^{vowels}]*$", text)[0]
    if len(start) == len(text):
        return False
    return (len(start) < 2 or start in _STARTS) and (len(end) < 2 or end in _ENDS)


@cache
def default_glossary() -> Glossary:
    """Return the glossary that comes with the pack."""
    none = Glossary({}, frozenset(), {}, {}, {}, {}, frozenset())
    return _merge(none, _read(DEFAULT), str(DEFAULT))


def load_glossary(paths: Iterable[Path] = ()) -> Glossary:
    """Return the pack's glossary with the files of `paths` added in order; a later entry replaces an earlier one.

    ValueError naming the file and the field if one cannot be read or is not of the form above.
    """
    glossary = default_glossary()
    for path in map(Path, paths):
        glossary = _merge(glossary, _read(path), str(path))
    return glossary


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(
            f"glossary {path} cannot be read ({type(e).__name__}: {e}); give a UTF-8 JSON file"
        ) from e
    return _loads(text, str(path))


def _loads(text: str, name: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ValueError(f"{name} is not JSON: {e}") from e
    if not isinstance(data, dict):
        raise ValueError(
            f"{name} is a JSON {type(data).__name__}; the top level must be an object with fields"
        )
    if data.get("version", VERSION) != VERSION:
        raise ValueError(f"{name} has version {data['version']!r}; this pack reads version {VERSION}")
    fields = {"version", "words", "spell", "say", "abbreviations", "indices", "brands", "rulers"}
    if unknown := sorted(set(data) - fields):
        raise ValueError(f"{name} has no field {unknown[0]!r}; the fields are {', '.join(sorted(fields))}")
    return data


def _merge(base: Glossary, data: dict[str, Any], name: str) -> Glossary:
    words = {
        key: base.words.get(key, frozenset()) | found
        for key, found in _word_lists(data.get("words", {}), f"{name}: words").items()
    }
    spell = frozenset(_strings(data.get("spell", []), f"{name}: spell"))
    said = frozenset().union(*_word_lists(data.get("words", {}), f"{name}: words").values())
    return replace(
        base,
        words={key: found - spell if base.spell else found for key, found in words.items()},
        spell=(base.spell - said) | spell,
        say=_maps(base.say, data.get("say", {}), f"{name}: say"),
        abbreviations=_maps(base.abbreviations, data.get("abbreviations", {}), f"{name}: abbreviations"),
        indices={**base.indices, **_entries(data.get("indices", []), f"{name}: indices", "say")},
        brands={**base.brands, **_brands(data.get("brands", []), f"{name}: brands")},
        rulers=base.rulers | frozenset(_strings(data.get("rulers", []), f"{name}: rulers")),
    )


def _strings(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise ValueError(f"{where} must be a list of words, not {value!r:.80}")
    return value


def _object(value: Any, where: str, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object, not {value!r:.80}")
    if keys and (unknown := sorted(set(value) - set(keys))):
        raise ValueError(f"{where} has no {unknown[0]!r}; it takes {', '.join(keys)}")
    return value


def _texts(value: Any, where: str) -> dict[str, str]:
    found = _object(value, where)
    for key, said in found.items():
        if not key.strip() or not isinstance(said, str) or not said.strip():
            raise ValueError(f"{where}: {key!r} must map a word to what is said, not to {said!r:.80}")
    return found


def _word_lists(value: Any, where: str) -> dict[str, frozenset[str]]:
    keys = (*_LANGUAGES, "any")
    found = _object(value, where, keys)
    return {key: frozenset(_strings(found.get(key, []), f"{where}.{key}")) for key in keys}


def _maps(base: Mapping[str, Mapping[str, str]], value: Any, where: str) -> dict[str, dict[str, str]]:
    found = _object(value, where, _LANGUAGES)
    return {key: {**base.get(key, {}), **_texts(found.get(key, {}), f"{where}.{key}")} for key in _LANGUAGES}


def _entries(value: Any, where: str, field: str) -> dict[str, dict[str, str]]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list of objects, not {value!r:.80}")
    found = {}
    for entry in value:
        entry = _object(entry, where, ("name", "say", "noun"))
        name = entry.get("name")
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{where}: every entry needs a name, {entry!r:.80} has none")
        texts = _texts(
            _object(entry.get(field, {}), f"{where} {name}", _LANGUAGES), f"{where} {name}.{field}"
        )
        found[name] = texts
    return found


def _brands(value: Any, where: str) -> dict[str, dict[str, dict[str, str]]]:
    nouns, said = _entries(value, where, "noun"), _entries(value, where, "say")
    return {name: {"noun": nouns[name], "say": said[name]} for name in nouns}
