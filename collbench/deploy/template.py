"""Templates of the files, kinds/templates/*.j2: text to be read, with holes that only take what is quoted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.deploy import quoting
from collbench.deploy.quoting import Quoted

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent / "kinds" / "templates"
FILTERS = (
    quoting.sh,
    quoting.line,
    quoting.yaml,
    quoting.yamls,
    quoting.python,
    quoting.remark,
    quoting.ansible,
    quoting.pod,
    quoting.pods,
)
_ANGLES: dict[str, Any] = {
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "block_start_string": "<%",
    "block_end_string": "%>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}


def filled(name: str, **values: Any) -> str:
    """The template `name` with these values; whole numbers and `Quoted` text alone are written, others through a filter that quotes.

    Where the file's own language is Jinja (Ansible), our holes are << … >> and <% … %>: its name then begins with "ansible".
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
    raise TypeError(f"{value!r} is not quoted: put it through one of {', '.join(each.__name__ for each in FILTERS)}")
