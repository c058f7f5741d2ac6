"""Every message of collbench, rendered once: a module per family, with examples of its facts and errors.

`MESSAGES` of a family maps the name of an example to a fact, or to a function that returns a text, such as that of an error.
tests/test_messages.py compares them with tests/golden/messages/FAMILY.txt; `COLLBENCH_GOLDEN=1` writes those files. This is the only place
where tests assert the words of a message: other tests assert types and fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from collbench.errors import CollbenchError
from collbench.reason import Fact

Message = Fact | Callable[[], object]


def families() -> list[tuple[str, Mapping[str, Message]]]:
    """The name of each family, and its examples."""
    modules = iter_modules([str(Path(__file__).parent)])
    return [(module.name, import_module(f"{__name__}.{module.name}").MESSAGES) for module in modules]


def rendered(message: Message) -> str:
    """The text that a user sees. A function may raise a CollbenchError: its text counts."""
    if isinstance(message, Fact):
        return message.render()
    try:
        return str(message())
    except CollbenchError as error:
        return str(error)
