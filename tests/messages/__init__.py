"""Every message of collbench, rendered once: a module per family, with examples of its facts and errors. Plug-ins have modules, too.

`MESSAGES` of a family maps the name of an example to a fact, or to a function that returns a text, such as that of an error.
tests/test_messages.py compares them with tests/golden/messages/FAMILY.txt; `COLLBENCH_GOLDEN=1` writes those files. This is the only place
where tests assert the words of a message: other tests assert types and fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from collbench.errors import CollbenchError
from collbench.reason import Fact

TESTS = Path(__file__).parents[1]
Message = Fact | Callable[[], object]


def families() -> list[tuple[str, Mapping[str, Message]]]:
    """The name of each family, and its examples."""
    return [(family, module.MESSAGES) for family, module in _modules().items()]


def invalid_lines() -> list[str]:
    """Return the command lines of all families that are rejected before anything starts."""
    return [line for module in _modules().values() for line in getattr(module, "LINES", "").splitlines()]


def _modules() -> dict[str, ModuleType]:
    """Return the modules of the families by name."""
    files = [file for file in (*TESTS.glob("messages/*.py"), *TESTS.glob("plugins/*/messages/*.py")) if file.stem != "__init__"]
    modules = {file.stem: ".".join(file.relative_to(TESTS.parent).with_suffix("").parts) for file in files}
    return {family: import_module(module) for family, module in sorted(modules.items())}


def rendered(message: Message) -> str:
    """The text that a user sees. A function may raise a CollbenchError: its text counts."""
    if isinstance(message, Fact):
        return message.render()
    try:
        return str(message())
    except CollbenchError as error:
        return str(error)
