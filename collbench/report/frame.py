"""What is about to be printed: enough about all rows to choose columns and widths before the first of them is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from collbench.analysis.launches import known
from collbench.results.reader import Run
from collbench.results.row import SERIES, Row
from collbench.units import format_rate

# What several groups did at the same time, in words: each one's rate, and that of all together.


def group_rates(row: Row) -> tuple[list[float], float | None]:
    """The busbw of each of several groups in bytes per second, and of all together; ([], None) where the row's are no numbers."""
    each, total = row.groups.get("busbw_bytes_per_s"), row.groups.get("total_busbw_bytes_per_s")
    rates = [float(rate) for rate in each if known(rate)] if isinstance(each, list | tuple) else []
    return rates, float(total) if total is not None and known(total) else None


def of_each_group(row: Row) -> str:
    """The slowest and the fastest group's busbw in GB/s: "9.41–9.45"; "" where they are not known."""
    rates, _ = group_rates(row)
    slowest, fastest = (format_rate(pick(rates)) if rates else "" for pick in (min, max))
    return slowest if slowest == fastest else f"{slowest}–{fastest}"


def groups_in_words(row: Row) -> str:
    """ "2 groups of 4 ranks: 9.41–9.45 GB/s each, 18.9 GB/s in all"; "" where there is one group."""
    count, ranks = row.groups.get("count"), row.groups.get("ranks")
    if not (known(count) and known(ranks)):
        return ""
    each, (_, total) = of_each_group(row), group_rates(row)
    rates = [*([f"{each} GB/s each"] if each else []), *([f"{format_rate(total)} GB/s in all"] if total is not None else [])]
    return f"{count} groups of {ranks} ranks{': ' if rates else ''}{', '.join(rates)}"


@dataclass(frozen=True)
class PlanSummary:
    """The run as its reader needs it.

    cells     how many rows will come
    values    per field of SERIES the different values that will occur (None among them where some cell has none, or is undecided)
    sizes     the message sizes in bytes
    rank_map  per rank {"rank", "host", "local_rank", "pid", "gpu"}; may be empty, and so may its parts
    run       the run's folder or its name, or ""
    launches  how many launches the intervals rest on
    by_backend  how many rows each backend will have
    """

    cells: int
    values: Mapping[str, frozenset[Any]]
    sizes: frozenset[int]
    rank_map: tuple[Mapping[str, Any], ...] = ()
    run: str = ""
    launches: int = 1
    by_backend: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, cells: Iterable[Any], rank_map: Iterable[Mapping[str, Any]] = (), run: str = "", launches: int = 1, **known: Any
    ) -> PlanSummary:
        """The summary of cells or rows; `known` gives what cells do not say and is the same for all: ranks=4, nodes=1."""
        each = list(cells)
        values = {name: frozenset(_value(cell, name, known) for cell in each) for name in SERIES}
        by_backend = Counter(str(_value(cell, "backend", known)) for cell in each)
        return cls(len(each), values, frozenset(cell.size_bytes for cell in each), tuple(rank_map), run, launches, by_backend)

    @property
    def moves(self) -> bool:
        """Whether any row is of something that moves bytes."""
        return any(self.sizes) or not self.sizes

    def varies(self, name: str) -> bool:
        """Whether more than one value of the field occurs."""
        return len(self.values.get(name, ())) > 1

    def some(self, name: str) -> list[str]:
        """The values of the field that occur, as text and sorted, None left out."""
        return sorted(str(value) for value in self.values.get(name, ()) if value is not None)


def plan_of(run: Run, rows: Iterable[Row] | None = None, name: str | None = None) -> PlanSummary:
    """The summary of a stored run; of its rank map only what is well-formed. `rows` and `name` are those of several launches like it."""
    rank_map = run.info.get("rank_map")
    places = [place for place in rank_map if isinstance(place, dict)] if isinstance(rank_map, list) else []
    shown = list(run.rows if rows is None else rows)
    launches = max((row.launches for row in shown), default=1)
    return PlanSummary.of(shown, places, run.path.resolve().name if name is None else name, launches)


def in_print_order(rows: Iterable[Row]) -> list[Row]:
    """Rows series by series, and within a series ascending in size, whatever the order they were measured in."""
    return sorted(rows, key=lambda row: [*(_sortable(getattr(row, name)) for name in SERIES), (1, row.size_bytes)])


def is_several(group: str) -> bool:
    """Whether a row's `group` names several that ran at the same time: "MOD 8", "0-2,1-3"; not "all", and no single pair."""
    return " " in group or "," in group or "…" in group


def _value(cell: Any, name: str, known: Mapping[str, Any]) -> Any:
    """A row's or cell's field; a cell's groups follow from its split and the number of ranks."""
    if name == "group" and not hasattr(cell, name):
        return _group(cell, known.get("ranks"))
    value = getattr(cell, name, known.get(name))
    return getattr(value, "name", value)


def _group(cell: Any, ranks: int | None) -> str | None:
    from collbench.operations.groups import group_name, groups_of  # here, since stored rows need no operation
    from collbench.operations.registry import operations

    operation = operations().get(cell.operation)
    if operation is None or ranks is None or (operation.pair and ranks < 2):
        return None
    return group_name(operation, cell, groups_of(operation, cell, ranks))


def _sortable(value: Any) -> tuple[int, Any]:
    return (0, 0) if value is None else (1, value)
