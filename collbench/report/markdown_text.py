"""Text as Markdown (GitHub's): what would be markup, a link or a mention is letters. Any text may come from a stranger's file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from collbench.report.flags import printable

# In the order in which they are replaced: later ones write "&" and "\\".
_LETTERS = (
    ("&", "&amp;"), ("<", "&lt;"), ("\\", "\\\\"), ("|", "\\|"), ("`", "\\`"), ("*", "\\*"), ("_", "\\_"), ("[", "\\["), ("~", "\\~"),
    ("$", "&#36;"), ("://", ":&#47;&#47;"), ("www.", "www&#46;"), ("@", "@<!-- -->"),
)  # fmt: skip
_OPENS_A_BLOCK = re.compile(r"^(?:([-+#=>])|(\d+)(?=[.)](?:\s|$)))")


def escaped(text: str) -> str:
    """`text` within a line or a cell of a table."""
    text = printable(text)
    for letters, instead in _LETTERS:
        text = text.replace(letters, instead)
    return text


def escaped_line(text: str) -> str:
    """`text` as a line of its own or an item of a list, where a number or a sign at the beginning would open something."""
    return _OPENS_A_BLOCK.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\", escaped(text.strip()))


def record(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(escaped, cells))} |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[bool]) -> list[str]:
    """A table's lines; `right` are the columns whose figures end at the same place."""
    return [record(head), f"|{'|'.join('---:' if each else '---' for each in right)}|", *map(record, rows)]


def items(texts: Iterable[str]) -> list[str]:
    """A list's lines."""
    return [f"- {escaped_line(text)}" for text in texts]
