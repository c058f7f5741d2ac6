"""Summary of the rows that will be printed: enough to choose columns and widths before the first row is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from collbench.results.row import SERIES, Row

if TYPE_CHECKING:
    from collbench.analysis.launches import Launches


def operation_name(stored: str) -> str:
    """Return an operation's name as its command spells it: "neighbor-alltoall" for the stored "neighbor_alltoall"."""
    return stored.replace("neighbor_", "neighbor-")


class PlanSummary(msgspec.Struct, frozen=True):
    """A summary of the rows that will be printed.

    cases     the number of rows
    values    by field of SERIES the different values that will occur (None if a case has no value, or it is not decided yet)
    sizes     the message sizes in bytes
    rank_map  per rank {"rank", "host", "local_rank", "pid", "gpu"}; may be empty, and so may its parts
    run       the run's folder or its name, or ""
    launches  the number of launches behind the intervals
    by_backend  the number of rows of each backend
    within    the fields of SERIES with several values for one operation over one backend
    requested what was requested, as run.json's "asked": the options, and the span of the sizes in bytes; may lack both
    modelled  whether a row has an expected time
    """

    cases: int
    values: Mapping[str, frozenset[Any]]
    sizes: frozenset[int]
    rank_map: tuple[Mapping[str, Any], ...] = ()
    run: str = ""
    launches: int = 1
    by_backend: Mapping[str, int] = msgspec.field(default_factory=dict)
    within: frozenset[str] = frozenset()
    requested: Mapping[str, Any] = msgspec.field(default_factory=dict)
    modelled: bool = False

    @classmethod
    def of(
        cls, cases: Iterable[Any], rank_map: Iterable[Mapping[str, Any]] = (), run: str = "", launches: int = 1, **common: Any
    ) -> PlanSummary:
        """Return the summary of cases or rows; `common` has what cases do not have and is the same for all: ranks=4, nodes=1."""
        planned = list(cases)
        values = {name: frozenset(_value(case, name, common) for case in planned) for name in SERIES}
        blocks: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for case in planned:
            fields = tuple(_value(case, name, common) for name in SERIES)
            blocks.setdefault(fields[:2], []).append(fields)
        columns = (zip(SERIES, zip(*rows, strict=True), strict=True) for rows in blocks.values())
        within = {name for block in columns for name, block_values in block if len(set(block_values)) > 1}
        by_backend = Counter(str(_value(case, "backend", common)) for case in planned)
        sizes = frozenset(case.size_bytes for case in planned)
        return cls(len(planned), values, sizes, tuple(rank_map), run, launches, by_backend, frozenset(within))

    @property
    def moves(self) -> bool:
        """Return whether an operation moves bytes."""
        return any(self.sizes) or not self.sizes

    def varies(self, name: str) -> bool:
        """Return whether more than one value of the field occurs."""
        return len(self.values.get(name, ())) > 1

    def some(self, name: str) -> list[str]:
        """Return the values of the field, as text and sorted, without None."""
        return sorted(str(value) for value in self.values.get(name, ()) if value is not None)


def plan_of(table: Launches, rows: Iterable[Row]) -> PlanSummary:
    """Return the summary of `rows` of stored launches, with the valid entries of the first one's rank map."""
    rank_map = table.runs[0].info.get("rank_map")
    places = [place for place in rank_map if isinstance(place, dict)] if isinstance(rank_map, list) else []
    shown = list(rows)
    requested = table.runs[0].info.get("asked")
    summary = PlanSummary.of(shown, places, table.name, max((row.launches for row in shown), default=1))
    modelled = any(row.expectation is not None and row.expectation.expected_time_s is not None for row in shown)
    return replace(summary, requested=requested if isinstance(requested, dict) else {}, modelled=modelled)


def differing_fields(rows: Sequence[Row]) -> list[str]:
    """Return the fields that name a series: operation and backend, and others of SERIES that differ between the rows."""
    return [name for name in SERIES if name in ("operation", "backend") or len({getattr(row, name) for row in rows}) > 1]


def in_print_order(rows: Iterable[Row]) -> list[Row]:
    """Return the rows series by series, and ascending in size within a series."""

    def place(row: Row) -> list[tuple[int, Any]]:
        values = [getattr(row, name) for name in (*SERIES, "size_bytes")]
        return [(0, 0) if value is None else (1, value) for value in values]

    return sorted(rows, key=place)


def is_several(group: str) -> bool:
    """Return whether a row's `group` has several groups: "MOD 8", "0-2,1-3"; not "all", nor a single pair."""
    return " " in group or "," in group or "…" in group


def _value(case: Any, name: str, common: Mapping[str, Any]) -> Any:
    """Return a field of a row or case; the groups of a case follow from its split and the number of ranks."""
    if name == "group" and not hasattr(case, name):
        return _group(case, common.get("ranks"))
    value = getattr(case, name, common.get(name))
    return getattr(value, "name", value)


def _group(case: Any, ranks: int | None) -> str | None:
    from collbench.operations.groups import group_name, groups_of  # not needed for stored rows
    from collbench.operations.registry import operations

    operation = operations().get(case.operation)
    if operation is None or ranks is None or (operation.pair and ranks < 2):
        return None
    return group_name(operation, case, groups_of(operation, case, ranks))
