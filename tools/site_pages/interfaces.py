"""Pages of the operations, the backends, and the Python interface of plug-ins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from collbench.backends import backend as contract
from collbench.backends import host, messages
from collbench.backends.backend import in_place_only, steps_of, unsupported_reason
from collbench.backends.registry import DEFAULTS, backend_class, backend_names
from collbench.operations import operation as operation_contract
from collbench.operations import program
from collbench.operations.case import Case
from collbench.operations.dtypes import dtype_named
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from site_pages.markdown import block, code, escaped, page, sentence, table

_RANKS = (2, 4, 8)
_WRAPPERS = frozenset({"slowed"})  # it has the operations of the backend that it slows down


def operations_page() -> str:
    """Return the page of the operations: their bus factors, and the backends that support them."""
    names = [name for name in backend_names() if name not in _WRAPPERS]
    kinds = {name: backend_class(name) for name in names}
    every = sorted(operations().values(), key=lambda each: (each.command or each.name, each.name))
    return page(
        "Operations and backends",
        "The size of a case is that of nccl-tests: the larger of what a rank sends and what it receives. "
        "The bus factor converts algbw (size / time) to busbw; the table has that of 2, 4 and 8 ranks.",
        table(["operation", "command", "what it does", "bus factor", "needs"], map(_operation, every)),
        "## Which backend supports which operation",
        "“in place”: only with one buffer. [Backends](backends.md) describes each. An unsupported case is a row `n/a` with the reason. "
        "A loaded library may lack further data types or functions; the row has that reason too.",
        table(["operation", *names], ([code(each.name), *(_support(kind, each) for kind in kinds.values())] for each in every)),
    )


def _operation(each: Operation) -> list[str]:
    command = each.command or each.name
    factors = dict.fromkeys(f"{each.bus_factor(n):.3g}" for n in _RANKS)
    needs = [word for word, applies in (("a reduction operation", each.reduces), ("a root", each.rooted)) if applies]
    return [code(each.name), f"[`{command}`](cli/{command}.md)", escaped(each.summary), ", ".join(factors), " and ".join(needs)]


def _support(kind: Any, operation: Operation) -> str:
    if kind.virtual:
        return "yes"
    if steps_of(kind, operation) is None or not _accepts(kind, operation):
        return "–"
    return "in place" if in_place_only(kind, operation) else "yes"


def _accepts(kind: Any, operation: Operation) -> bool:
    """Return whether the backend supports a common case of the operation, as far as it can decide before its library is loaded."""
    unopened = object.__new__(kind)
    unopened.ranks = 4
    case = Case(
        operation.name, kind.name, dtype_named("float32"), 1 << 20, min(kind.devices), redop="sum" if operation.reduces else None,
        root=0 if operation.rooted else None, window=1 if operation.windowed else None,
    )  # fmt: skip
    try:
        return unsupported_reason(unopened, operation, case) is None
    except AttributeError:  # it needs the library, which has the functions of its steps
        return True


def backends_page() -> str:
    """Return the page of the backends."""
    rows = []
    for name in backend_names():
        kind = backend_class(name)
        module = (import_module(kind.__module__).__doc__ or "").strip().split("\n\n")[0]
        about = (inspect.getdoc(kind) or module).split("\n\n")[0].removeprefix(f"The backend {name}: ")
        known = {
            "default on CPUs": name in DEFAULTS, "`--streams`": kind.takes_streams, "`--algorithms`, `--protocols`": kind.takes_tuning,
            "made-up times": kind.virtual,
        }  # fmt: skip
        facts = [word for word, applies in known.items() if applies]
        rows.append((code(name), sentence(about), ", ".join(sorted(kind.devices)), ", ".join(facts)))
    return page(
        "Backends",
        "A backend is the library that moves the data. `collbench backends` prints which are available, and how to get the others. "
        "`mpi` and `gloo` use GPU memory (`--device cuda`) where the loaded library supports it.",
        table(["backend", "what it is", "buffers in", "properties"], rows),
        "[Operations](operations.md) lists what each supports, [Further backends](stacks.md) how to get the others and what their times "
        "include, and [ports](ports.md) which ports each opens.",
    )


# The names that a plug-in may import, by module; ARCHITECTURE.md promises that they stay.
API: dict[Any, tuple[str, ...]] = {
    operation_contract: (
        "Operation", "Block", "Place", "Binding", "in_place_only", "out_of_place_only", "result_first", "needs_two_ranks",
        "needs_out_of_place",
    ),
    program: ("Call", "PythonCall", "Program"),
    contract: ("Backend", "BackendBase", "Available", "Unavailable", "Settings", "Tuning", "Group"),
    host: ("HostBackend",),
    messages: ("MessageBinding",),
}  # fmt: skip


def python_api() -> str:
    """Return the page of the Python interface for plug-ins: signatures and docstrings."""
    parts = [
        "This is what plug-ins may import; other modules may change in any release. "
        "[Add an operation](../develop/add-an-operation.md) and [add a backend](../develop/add-a-backend.md) have complete examples.",
        table(["entry point", "value"], [("`collbench.operations`", "an `Operation`, or a module with several"),
                                         ("`collbench.backends`", "a class with the methods of `Backend`")]),
    ]  # fmt: skip
    for module, names in API.items():
        parts.append(f"## {module.__name__}")
        for name in names:
            parts += entry(name, getattr(module, name))
    return page("Interface of plug-ins", *parts)


def entry(name: str, value: Any) -> Iterator[str]:
    """Yield the heading of a function or class, its signature and docstring, and the table of its methods."""
    yield f"### {name}"
    signature = f"{name}{_signature(value)}\n\n" if inspect.isfunction(value) else ""
    yield block(f"{signature}{inspect.getdoc(value) or ''}")
    if inspect.isclass(value):
        methods = [(each, found) for each, found in vars(value).items() if not each.startswith("_") and _function(found)]
        if methods:
            rows = ((code(f"{each}{_signature(_function(found))}"), escaped((inspect.getdoc(_function(found)) or "").split("\n\n")[0]))
                    for each, found in methods)  # fmt: skip
            yield table(["method", "what it does"], rows)


def _function(found: Any) -> Any:
    inner = found.__func__ if isinstance(found, classmethod | staticmethod) else found
    return inner if inspect.isfunction(inner) else None


def _signature(function: Any) -> str:
    """Return the signature; annotations are texts, of which only the words of a Literal had quotes of their own."""
    return re.sub("[\"']", "", str(inspect.signature(function)))
