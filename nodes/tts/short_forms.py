"""Whether a sentence ends behind a short form: "on Mon. Residents must go", but "Gen. Bondi", "Rte. 66", "Mon. Jan. 5"."""

from __future__ import annotations

import re
from functools import lru_cache

from .languages import COMMON, FUNCTION_EN, PLAIN

_ENDERS = frozenset(
    """Inc. Corp. Co. Ltd. Bros. Jr. Sr. Ave. Blvd. Rd. Ln. Pkwy. Pl. Sq. Hwy. etc. M.D. Ph.D. hr. hrs. min. max. est. a.k.a.
    S.A. S.L. Cía. cía. Hnos. izq. izda. dcha. Ud. Uds. Vd. Vds. a.C. d.C. s.n.m. No. v. Dr. St.""".split()
)
"""Short forms that end a sentence as often as not: sentencex decides."""
_CALENDAR = re.compile(
    r"\b(?:Jan|Feb|Apr|Aug|Sept?|Oct|Nov|Dec|Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|(?<!\b[Tt]he )Sun|ene|feb|abr|jun|jul|ago|sept?|oct|nov|dic"
    r"|lun|mié|jue|vie|sáb|dom)\.$"
)
_DATED = r"\s*(?:[\d'’]|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b|Night|Morning|Afternoon|Evening|[A-Z]{2,}\b)"
_DETERMINED = re.compile(
    r"(?:\b(?:the|an?|its|their|our|his|her|this|last|next)|['’]s)\s\w+\.$", re.IGNORECASE
)
_TITLES = re.compile(
    r"(?<![\w.])(?:Mrs?|Ms|Mx|Drs?|Prof|Gov|Sens?|Reps?|Gen|Lt|Col|Maj|Capt|Cmdr|Sgt|Cpl|Adm|Amb|Det|Insp|Atty|Asst|Rev|Hon|Pres"
    r"|Messrs|St|Mt|Ft|Sra?s?|Srta|Dra?|Gral|Cnel|Cap|Gob|Pte|Pdte|Tte|Sgto|Cte|Alm|Mons|Lic|Ing|Sto|Sta|Dña|Fco|Vda)\.$"
)
_SIDE = re.compile(
    r"\b(?:[Ww]inds?|then|mi\.?|miles?|km|veer\w*|back\w*|becoming|turning|shifting|to the|from the)\s[NSEW]{1,2}\.$"
)


@lru_cache(maxsize=16)
def _pattern(short: frozenset[str]) -> re.Pattern:
    forms = sorted((s for s in short if s.endswith(".") and s not in _ENDERS), key=len, reverse=True)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, forms)) or '(?!)'})$")


def goes_on(before: str, after: str, language: str, short: frozenset[str]) -> bool | None:
    """Return whether a sentence goes on behind the short form that `before` ends with, None if it ends with none.

    short: the short forms of a glossary, with their full stops.
    """
    before = before.rstrip()[-40:]
    word = re.match(r"\s*[\"“«¿¡]?([^\W\d_]*)(?:\s+([^\W\d_]?))?", after)
    capital = word[1][:1].isupper()
    plain = word[1].lower() in COMMON[language] | PLAIN[language] | (
        FUNCTION_EN if language == "en" else set()
    )
    opens = capital and plain and (not word[2] or word[2].islower())  # La calle ..., but La Paz
    if _CALENDAR.search(before):
        if not capital:
            return True
        if (
            re.match(_DATED, after) and not opens or len(before.split()) < 3 and not before[0].isdigit()
        ):  # On Sat. Lee spoke
            return True
        return not opens and bool(_DETERMINED.search(before))
    if _SIDE.search(before):
        return not capital
    if re.search(r"\d\s?(?:mi|km|ft|yd)\.$", before) and re.match(r"\s*[NSEW]{1,3}\s+of\b", after):
        return True
    if not _pattern(short).search(before):
        return None
    return not opens or bool(_TITLES.search(before))
