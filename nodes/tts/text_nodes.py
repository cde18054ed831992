"""Normalize Text: a script in the words that are said, and what was changed."""

from __future__ import annotations

from comfy_api.latest import io

from ..comfy_nodes import ComfyContext, input_names, input_path, input_stamp
from ..core.report import Report
from .glossary import Glossary, default_glossary, load_glossary

LANGUAGES = ("auto", "en", "en-GB", "es", "es-MX")
NO_GLOSSARY = "none"
_SCRIPT = "Good evening. Apple rose 2.5% to $187.40 at 9:30 a.m. on 3/4/2025, NASA said."


def glossary_of(name: str) -> Glossary:
    """Return the pack's glossary with the JSON `name` of the input folder added, or as it is for "none" and ""."""
    return default_glossary() if name in (NO_GLOSSARY, "") else load_glossary([input_path(name)])


class NormalizeText(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        files = [name for name in input_names((".json",)) if name.lower().endswith(".json")]
        return io.Schema(
            node_id="TalkingHeadNormalizeText",
            display_name="Normalize Text",
            category="Talking Head/speech",
            description=(
                "Writes a script in the words a newsreader says, for any voice: numbers, money, dates, acronyms, indices. "
                "English and Spanish; needs `pip install unicode-rbnf sentencex`."
            ),
            inputs=[
                io.String.Input(
                    "text",
                    multiline=True,
                    default=_SCRIPT,
                    tooltip="The script. Inline tags such as [pause:0.5] pass through as they are.",
                ),
                io.Combo.Input(
                    "language",
                    options=list(LANGUAGES),
                    default="auto",
                    tooltip=(
                        "auto looks at the words; changes says what it took. en reads 3/4 as March 4th, en-GB as the 3rd of April; es has the decimal "
                        "comma, es-MX the point and pesos for $. Spans of the other language follow its own rules."
                    ),
                ),
                io.Boolean.Input(
                    "exclamations",
                    default=False,
                    tooltip='Rule U5, changes words: a lone "Breaking!" becomes a phrase, since voices swallow its start.',
                ),
                io.Boolean.Input(
                    "quotations",
                    default=False,
                    tooltip="Rule U6, changes the text: dashes around a quotation of four words or more. Its marks are silent, on or off.",
                ),
                io.Boolean.Input(
                    "brand_nouns",
                    default=False,
                    tooltip=(
                        "Rule U7, changes words: a noun before foreign brands (la firma Apple), for the brands that have "
                        "one in the glossary."
                    ),
                ),
                io.Combo.Input(
                    "glossary",
                    options=[NO_GLOSSARY, *files],
                    default=NO_GLOSSARY,
                    tooltip=(
                        "A JSON of ComfyUI's input folder with your names and how they are said; it adds to the pack's own "
                        "and wins over it."
                    ),
                ),
            ],
            outputs=[
                io.String.Output("TEXT", display_name="text"),
                io.String.Output("CHANGES", display_name="changes"),
            ],
        )

    @classmethod
    def validate_inputs(cls, glossary: str | None = NO_GLOSSARY) -> bool | str:
        try:
            if glossary is not None:
                glossary_of(glossary)
        except ValueError as e:
            return str(e)
        return True

    @classmethod
    def fingerprint_inputs(cls, glossary: str | None = NO_GLOSSARY, **_) -> str:
        return "" if glossary in (NO_GLOSSARY, "", None) else input_stamp(glossary)

    @classmethod
    def execute(
        cls,
        text: str,
        language: str,
        exclamations: bool,
        quotations: bool,
        brand_nouns: bool,
        glossary: str,
    ) -> io.NodeOutput:
        from .text import WORDING, normalize_text

        asked = zip(WORDING, (exclamations, quotations, brand_nouns), strict=True)
        report = Report()
        wording, poll = [rule for rule, on in asked if on], ComfyContext().check_cancelled
        done = normalize_text(text, language, wording, glossary_of(glossary), report, poll=poll)
        changes = "\n".join(filter(None, (done.diff() or "nothing changed", report.text())))
        return io.NodeOutput(done.text, changes)


NODES = [NormalizeText]
