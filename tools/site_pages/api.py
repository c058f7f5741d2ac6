"""The page of the Python API: signatures and docstrings of its functions, and the columns of its tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import collbench
from collbench.analysis.compare import CaseRatio, Comparison, Summary
from collbench.analysis.launches import Launches
from collbench.api import frames
from collbench.cli.options import OPTIONS
from collbench.gating.verdict import Suspicion, Verdict
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.collective import CollectiveCeilings
from collbench.results.reader import Run
from site_pages.formats import described_lines
from site_pages.interfaces import entry
from site_pages.markdown import block, code, codes, escaped, page, table

_FUNCTIONS = ("read", "measure", "replay", "compare", "gate", "autopsy", "peak", "predict", "probe")
FUNCTIONS = tuple(name for name in _FUNCTIONS if name in collbench.__all__)  # without those of plug-ins that are absent
RESULTS: tuple[Any, ...] = (Run, Launches, Comparison, CaseRatio, Summary, Verdict, Suspicion, CollectiveCeilings, Ceiling, Machine)
_EXAMPLE = """
import collbench

runs = collbench.measure("allreduce", sizes="1K-1M", ranks=2)   # or: collbench.read("runs/2026*")
print(runs.frame()[["backend", "size_bytes", "time_p50_s", "busbw_bytes_per_s"]])
print(collbench.compare("runs/before", "runs/after").summary)
"""


def api_page() -> str:
    """Return the page of the API."""
    functions = {name: getattr(collbench, name) for name in FUNCTIONS}
    errors: list[Any] = [
        value for name in sorted(collbench.__all__) if inspect.isclass(value := getattr(collbench, name)) and value is not collbench.Runs
    ]
    parts = [
        "`import collbench` gives the functions below, the type `Runs`, and the errors that they raise. Everything else is internal. "
        "Tables need pandas: `pip install '.[pandas]'` in a checkout. [The notebook](../notebooks/first-analysis.md) shows them in use.",
        block(_EXAMPLE, "python"),
        "## Functions",
        "Types in signatures: `AnyPath` is a text or a `pathlib.Path`; `Names` is a text or several; `Sizes` is a number of bytes, "
        "a text such as `1K-1M`, or several of these.",
        *(part for name, value in functions.items() for part in (*_function(name, value), *_options(name, value))),
        "## Stored runs",
        *entry("Runs", collbench.Runs),
        "## Results",
        *(part for value in RESULTS for part in entry(value.__name__, value)),
        "## Errors",
        table(["exception", "exit code of the command", "meaning"],
              ((code(kind.__name__), code(str(kind.exit_code)), escaped((kind.__doc__ or "").split("\n\n")[0])) for kind in errors)),
        "## Columns of the tables",
        "`attrs[\"columns\"]` of a DataFrame has these descriptions.",
    ]  # fmt: skip
    for name, columns in frames.columns_of().items():
        rows = ((code(each), code(column.kind.pandas), escaped(column.description)) for each, column in columns.items())
        parts += [f"### Runs.{name}()", table(["column", "type", "meaning"], rows)]
    return page("Python API", *parts)


def _function(name: str, function: Any) -> Iterator[str]:
    """Yield the heading of a function, its signature with an argument per line, and its docstring with a table of arguments."""
    yield f"### {name}"
    signature = inspect.signature(function)
    separated = [str(each) for each in signature.parameters.values()]
    keywords = [each.kind is each.KEYWORD_ONLY for each in signature.parameters.values()]
    if True in keywords and not any(each.startswith("*") for each in separated):
        separated.insert(keywords.index(True), "*")
    arguments = "".join(f"    {each},\n" for each in separated)
    yield block(re.sub("[\"']", "", f"{name}(\n{arguments}) -> {signature.return_annotation}"), "python")
    for part in (inspect.getdoc(function) or "").split("\n\n"):
        described = described_lines(part)
        yield (
            table(["argument", "meaning"], ((codes(names.split(", ")), escaped(text)) for names, text in described))
            if described
            else escaped(part)
        )


def _options(name: str, function: Any) -> Iterator[str]:
    """Yield the arguments of `measure` or `replay` that are options of the command; nothing for other functions."""
    if name == "measure":
        options = OPTIONS
    elif name == "replay":
        from collbench.plugins.traces.replay_command import REPLAY_COMMAND

        options = REPLAY_COMMAND.declared
    else:
        return
    yield f"#### Arguments of {name} that are options"
    arguments = [each for each in inspect.signature(function).parameters if each in options]
    rows = ((code(each), code(options[each].flags.split()[-1]), escaped(options[each].help.replace("%%", "%"))) for each in arguments)
    yield table(["argument", "option", "meaning"], rows)
