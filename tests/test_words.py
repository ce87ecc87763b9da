"""Docstrings, comments and pages are in words that a stranger understands at first reading."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from places import ROOT

BANNED = {
    r"\b(that|those|this|these|such|the same) of (it|them|those|all|others?)\b": "the noun again",
    r"^(That|Those|Such|Likewise|The former|The latter|As before) ": "a sentence of its own",
    r"^The same( (for|in|as|with|by|at)\b|[.,:;])": "a sentence of its own",
    r"\b(the|its|their) (former|latter)\b": "the noun again",
    r"\b(the|The) same of\b|\bof such\b|\bsuch (as are|ones?)\b": "the noun again",
    r"\bnone of (these|them)\b": "the noun again",
    r"\bso many\b|\blikewise\b|\bas before\b": "the number, or the sentence again",
    r"\bkinks?\b": "hinge point",
    r"\bzones?\b": "smoothing band",
    r"\b(whoever|nobody|somebody|anybody)\b": "who or what it is",
    r"\bat hand\b": "gathered, in memory, known",
    r"\b(is|are|was|were|be) (told|asked for|not asked)\b": "reported, requested",
    r"\bastray\b|\bworn\b|\bhoped\b": "what is measured",
    r"\bbeside\b": "next to, in addition to, compared with",
}
"""Words of which the reader cannot know what they stand for, and what to write instead."""

PLACES = ("bigscreen/**/*.py", "pipelines/**/*.py", "tests/**/*.py", "docs/**/*.md", "*.md")


def read_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module, or a page, line by line with its number."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else []:
            constant = getattr(child, "value", None) if isinstance(child, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                lines = constant.value.splitlines()
                yield from ((child.lineno + k, line.strip()) for k, line in enumerate(lines))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def find_banned(line: str) -> list[tuple[str, str]]:
    """Find the banned words of a line, code and paths left out; each with what to write."""
    plain = re.sub(r"`[^`]*`|\S*[/_.]\S*\w|https?\S+", " ", line)
    return [
        (match[0].strip(), instead)
        for pattern, instead in BANNED.items()
        for match in re.finditer(pattern, plain)
    ]


def test_words_that_stand_for_others_are_not_used() -> None:
    files = {path for pattern in PLACES for path in ROOT.glob(pattern) if "_made" not in path.parts}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r}; write {instead}: {line[:80]}"
        for path in sorted(files - {Path(__file__).resolve()})
        for number, line in read_prose(path)
        for word, instead in find_banned(line)
    ]
    assert not found, "\n".join(found)


def test_a_banned_word_is_found_and_code_is_none() -> None:
    assert find_banned("Rows near their kink.") == [("kink", "hinge point")]
    assert [word for word, _ in find_banned("The same of some rows, likewise.")] == [
        "The same of",
        "likewise",
    ]
    assert not find_banned("`beside` and certify/beside.py are names, --at-hand an option.")
