"""Templates of the files, kinds/templates/*.j2: text to be read, with holes that only take what is quoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.emit import quoting
from collbench.emit.quoting import Quoted

_FOLDER = Path(__file__).parent / "kinds" / "templates"
_FILTERS = (quoting.sh, quoting.line, quoting.yaml, quoting.yamls, quoting.python, quoting.remark)


def filled(name: str, **values: Any) -> str:
    """The template `name` with these values; whole numbers and `Quoted` text alone are written, others through a filter that quotes."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        finalize=_safe,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update({each.__name__: each for each in _FILTERS})
    return environment.get_template(name).render(**values)


def _safe(value: object) -> str:
    if isinstance(value, Quoted) or type(value) is int:
        return str(value)
    raise TypeError(f"{value!r} is not quoted: put it through one of {', '.join(each.__name__ for each in _FILTERS)}")
