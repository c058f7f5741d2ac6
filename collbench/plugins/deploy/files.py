"""Quoting of values for each language of generated files, and their templates.

A template's `{{ … }}` accepts whole numbers and `Quoted` text only. So a missing quoting function is an error in a test, not an injection.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError

if TYPE_CHECKING:
    from jinja2 import Environment


class Quoted(str):
    """Text that is quoted for its file's language."""

    __slots__ = ()


def printable(text: str) -> str:
    """Return the text. Raises UsageError for control characters and line ends, which cannot be quoted safely in all languages."""
    if not text.isprintable():
        raise UsageError(f"{text!r} contains control characters: remove them")
    return text


def sh(text: str) -> Quoted:
    """Return one word of a POSIX shell."""
    return Quoted(shlex.quote(printable(text)))


def line(words: Iterable[str]) -> Quoted:
    """Return a command line of a POSIX shell."""
    return Quoted(" ".join(sh(word) for word in words))


def yaml(text: str) -> Quoted:
    """Return a double-quoted YAML string (which is JSON's): never a number, a date, an anchor or `no`."""
    return Quoted(json.dumps(printable(text), ensure_ascii=False))


def yamls(words: Iterable[str]) -> Quoted:
    """Return a YAML list of strings, in one line."""
    return Quoted("[" + ", ".join(yaml(word) for word in words) + "]")


def pod(text: str) -> Quoted:
    """Return a YAML string for a pod's command, args or env, where Kubernetes turns $$ into $ and replaces $(NAME)."""
    return yaml(text.replace("$", "$$"))


def pods(words: Iterable[str]) -> Quoted:
    """Return a YAML list of such strings, in one line."""
    return Quoted("[" + ", ".join(pod(word) for word in words) + "]")


def python(text: str) -> Quoted:
    """Return a Python string literal."""
    # JSON's escape of a character beyond U+FFFF would be two characters in Python
    return Quoted(json.dumps(printable(text), ensure_ascii=False))


def ansible(text: str) -> Quoted:
    """Return a YAML string that Ansible does not expand: tagged `!unsafe` if it contains "{"."""
    return Quoted(("!unsafe " if "{" in text else "") + yaml(text))


def remark(text: str) -> Quoted:
    """Return the rest of a comment's line, in any of these languages."""
    return Quoted(printable(text))


# The templates: kinds/templates/*.j2.

_FOLDER = Path(__file__).parent / "kinds" / "templates"
FILTERS = (sh, line, yaml, yamls, python, remark, ansible, pod, pods)
_ANGLES: dict[str, Any] = {
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "block_start_string": "<%",
    "block_end_string": "%>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}


def filled(name: str, **values: Any) -> str:
    """Return the template `name` filled with these values; only whole numbers and `Quoted` text are accepted, others need a filter.

    A template of Ansible uses << … >> and <% … %>, because Ansible itself uses Jinja's braces; its name begins with "ansible".
    """
    return _environment(_FOLDER, name.startswith("ansible")).get_template(name).render(**values)


@cache
def _environment(folder: Path, angles: bool) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        finalize=_safe,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        **(_ANGLES if angles else {}),
    )
    environment.filters.update({each.__name__: each for each in FILTERS})
    return environment


def _safe(value: object) -> str:
    if isinstance(value, Quoted) or type(value) is int:
        return str(value)
    raise TypeError(f"{value!r} is not quoted: use one of {', '.join(each.__name__ for each in FILTERS)}")
