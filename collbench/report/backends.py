"""Output of `collbench backends`: the backends that measure, then those with made-up times; or one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from collbench.backends.backend import Available, Feature, Unavailable
from collbench.backends.registry import backend_class, backend_names
from collbench.columns import NOTHING
from collbench.report.frame import Column, Frame, Line, table_lines

_MADE_UP = {"simulated", "slowed"}  # flags of backends with times that do not describe a network


class BackendState(msgspec.Struct, frozen=True):
    """A backend on this machine; `default`: whether it is used without --backend."""

    name: str
    devices: tuple[str, ...]
    answer: Available | Unavailable
    default: bool
    made_up: bool

    @property
    def available(self) -> bool:
        """Return whether it can run here."""
        return not isinstance(self.answer, Unavailable)

    @property
    def status(self) -> str:
        """Return "available", "n/a", and whether it is a default backend."""
        return f"{'available' if self.available else 'n/a'}{', default' if self.default else ''}"


def _about(state: BackendState) -> str:
    return f"{state.answer.about} ({', '.join(state.devices)})" if isinstance(state.answer, Available) else str(state.answer)


_COLUMNS: tuple[Column[BackendState], ...] = (
    Column("", "backend", lambda state: state.name, least=10),
    Column("", "status", lambda state: state.status, least=18),
    Column("", "version or reason", _about, wrap=True),
)
# What the library of a backend has, by its version.
_FEATURES: tuple[Column[tuple[BackendState, Feature]], ...] = (
    Column("", "backend", lambda entry: entry[0].name, least=10),
    Column("", "part of the library", lambda entry: entry[1].name),
    Column("", "since", lambda entry: entry[1].since or NOTHING),
    Column("", "here", lambda entry: "yes" if entry[1].available else "no"),
    Column("", "used by", lambda entry: entry[1].use or NOTHING, wrap=True),
)


def backend_states(defaults: Collection[str]) -> list[BackendState]:
    """Return all backends of this installation, in the order of the registry."""
    kinds = {name: backend_class(name) for name in backend_names()}
    return [
        BackendState(name, tuple(sorted(kind.devices)), kind.probe(), name in defaults, bool(_MADE_UP & {name, *kind.flags}))
        for name, kind in kinds.items()
    ]


def backend_lines(states: Sequence[BackendState], format: str, width: int | None = None) -> Iterator[Line]:
    """Yield a line per backend in `format`, "table" or "json"."""
    if format == "json":
        for state in states:
            about = msgspec.to_builtins(state.answer) if isinstance(state.answer, Available) else state.answer.as_json()
            facts = {"backend": state.name, "available": state.available, "devices": state.devices, "default": state.default}
            yield Line(json.dumps({**facts, "made_up": state.made_up, **about}))
        return
    parts = [(state, part) for state in states if isinstance(state.answer, Available) for part in state.answer.features]
    yield from table_lines(Frame(_COLUMNS, [state for state in states if not state.made_up]), width)
    columns = [replace(column, title="") for column in _COLUMNS]
    made_up = [state for state in states if state.made_up]
    yield from table_lines(Frame(columns, made_up, title="made-up times, to try and to test collbench"), width)
    if parts:
        yield from table_lines(Frame(_FEATURES, parts, title="what the libraries have, by their versions"), width)
