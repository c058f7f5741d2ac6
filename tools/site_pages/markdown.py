"""Text, tables and blocks in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import dedent

_CODE = re.compile(r"(`[^`]*`)")


def escaped(text: str) -> str:
    """Return text in one line, without Markdown or HTML of its own except `code`."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if part.startswith("`") and part.endswith("`") and len(part) > 1 else _plain(part) for part in parts)


def _plain(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([*\[\]])|(?<![A-Za-z0-9])(_)", r"\\\1\2", text)


def sentence(text: str) -> str:
    """Return a clause as a sentence; "" for none."""
    plain = " ".join(text.split())
    return escaped(f"{plain[0].upper()}{plain[1:]}" + ("" if plain.endswith((".", "?")) else ".")) if plain else ""


def code(text: str) -> str:
    """Return text as inline code; "" for none."""
    return f"`{text}`" if text else ""


def codes(words: Iterable[str]) -> str:
    """Return words as inline code, separated by commas."""
    return ", ".join(map(code, words))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown cells, without columns that are empty. Its cells have no line breaks."""
    body = [list(row) for row in rows]
    kept = [at for at in range(len(head)) if any(row[at] for row in body)]
    lines = [[line[at] for at in kept] for line in (head, ["---"] * len(head), *body)]
    return "".join(f"| {' | '.join(_cell(each) for each in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    one = " ".join(text.split())
    return "".join(part if part.startswith("`") else part.replace("|", "&#124;") for part in _CODE.split(one))


def block(text: str, language: str = "text") -> str:
    """Return text as a fenced block."""
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{dedent(text).strip(chr(10)).rstrip()}\n{fence}\n"


def page(title: str, *parts: str) -> str:
    """Return a page of parts, with an empty line between them."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part.strip())]) + "\n"


def paragraphs(text: str) -> str:
    """Return text of several paragraphs, escaped."""
    return "\n\n".join(escaped(part) for part in dedent(text).strip().split("\n\n"))
