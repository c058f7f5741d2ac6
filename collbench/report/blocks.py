"""The table of cases: a block for each operation over each backend, with what is constant in its title, for terminals of any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import LEAST_RATE_BYTES
from collbench.report.cases import (
    COLUMN_OF_KEY,
    NOTHING,
    SELECTABLE,
    facts_of_all,
    identity_column,
    if_groups,
    if_messages,
    name_value,
    not_available,
    quality_word,
    remarks,
    same_for_all,
    times,
    two_modes,
    wrong,
)
from collbench.report.frame import GAP, Column, Frame, Line, TextLayout, printable, text_lines, without_empty
from collbench.report.plan import PlanSummary
from collbench.results.quality import OK
from collbench.results.row import SERIES, Row
from collbench.units import format_size


class View(msgspec.Struct, frozen=True):
    """What the user wants to see of a table of cases.

    columns  names of columns in the wanted order; empty: those that fit. With `added`, they follow those
    verbose  whether every flag is shown below its row, and explained below the table
    quiet    whether only rows and answers are shown, without how to read them
    """

    columns: tuple[str, ...] = ()
    added: bool = False
    verbose: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, columns: str | None, verbose: bool, quiet: bool = False) -> View:
        """Return the view of --columns, --verbose and --quiet."""
        names, added = parse_columns(columns) if columns else ((), False)
        return cls(names, added, verbose, quiet)


DEFAULT_VIEW = View()


def parse_columns(text: str) -> tuple[tuple[str, ...], bool]:
    """Return the names in "size,time,p99" or "+p99,max", and whether they are added."""
    return tuple(name.strip() for name in text.removeprefix("+").split(",")), text.startswith("+")


def check_columns(names: Iterable[str]) -> None:
    """Raise UsageError for a name that rows of cases have no column of."""
    unknown = [name for name in names if name not in SELECTABLE]
    if unknown:
        choices = f"{', '.join(COLUMN_OF_KEY)}, or a column of `--format csv`"
        raise UsageError(f"--columns: unknown column '{printable(unknown[0])}': choose from {choices}")


_BY_KEY = {name: replace(column, text=column.brief or column.text) for name, column in SELECTABLE.items()}
COLUMNS = tuple(_BY_KEY[key] for key in COLUMN_OF_KEY)
_ALWAYS = ("size", "time")
_BASE = ("ci", "busbw", "percent", "wrong", "quality")  # a column that distinguishes rows leaves before these
_RATES = ("busbw", "expected", "percent", "hard_limit", "algbw")
_OVERLAP = ("size", "communication", "computation", "time", "overlap", "exposed", "slowdown", "assisted", "outcome", "quality")
_SHOWN = tuple(column.key for column in COLUMNS if column.drop or column.key in _ALWAYS)


def _keys(plan: PlanSummary, view: View) -> tuple[str, ...]:
    """Return the keys of the columns of figures for this plan."""
    if view.columns and not view.added:
        return view.columns
    if plan.some("mode") == ["overlap"]:
        keys: tuple[str, ...] = _OVERLAP
        hidden: set[str] = set()
    else:
        keys = _SHOWN
        hidden = {"all_groups"} if if_messages(plan) else {"message_rate"}
        if not if_groups(plan):
            hidden |= {"each_group", "all_groups"}
        if max(plan.sizes, default=LEAST_RATE_BYTES) < LEAST_RATE_BYTES:
            hidden |= set(_RATES)
    if not plan.moves:
        hidden.add("size")
    shown = [key for key in keys if key not in hidden]
    return tuple(dict.fromkeys([*shown[:-1], *view.columns, shown[-1]]))


class BlockLayout:
    """The lines of a table of cases.

    room   the width of a terminal; None: a file, with all columns
    rows   those known beforehand, which make the widths exact
    """

    def __init__(self, plan: PlanSummary, room: int | None, view: View, rows: Sequence[Row] = ()) -> None:
        self._plan = plan
        self._room = room
        self._named = view.columns
        self._rows = [row for row in rows if row.na is None]
        columns = [self._planned(_BY_KEY[key], view) for key in _keys(plan, view)]
        # without rows yet: the references that are measured inside a host are no limits
        has_limit = plan.some("device") != ["cpu"] or plan.some("nodes") != ["1"]
        shown = [column for column in columns if has_limit or column.key != "hard_limit"]
        if self._rows:
            shown = without_empty(columns, self._rows)
        self._columns = [column for column in columns if column in shown or column.key in view.columns]
        self._inside = [name for name in SERIES if name in plan.within]
        self._fit()
        self._block: tuple[Any, ...] | None = None
        self._limit: str | None = None

    def facts(self) -> list[Line]:
        """Return what is the same in all rows."""
        facts = same_for_all(self._plan)
        return list(text_lines(facts, self._room, "head")) if facts else []

    def row(self, row: Row) -> list[Line]:
        """Return the lines of a row, after those that begin its block if it is the first one."""
        lines = [self._layout.line(row)] if row.na is None else self._absent(row)
        return [*self._begin(row), *lines]

    def legend(self, rows: Sequence[Row]) -> list[str]:
        """Return the columns without room, and what a blank and a dash mean if these rows have them."""
        figures = [column for column in self._layout.columns if column in self._columns]
        texts = {column.text(row) for row in rows if row.na is None for column in figures}
        meanings = []
        if "" in texts:
            meanings.append(f"blank: no meaning {'for one rank' if all(row.ranks == 1 for row in rows) else 'at this size'}")
        if NOTHING in texts:
            meanings.append(f"{NOTHING}: unknown")
        legend = self._layout.hidden()
        return [*legend, "; ".join(meanings)] if meanings else legend

    def _planned(self, column: Column[Row], view: View) -> Column[Row]:
        """Return the column with the width that the plan needs; columns that the user named are not dropped."""
        named = column.key in view.columns
        least = column.least if not self._rows or (self._room is None and column.key == "time") else 0
        if column.key == "size":
            least = max((len(format_size(size)) for size in self._plan.sizes if size), default=1)
        return replace(column, drop=0 if named else column.drop, least=least)

    def _fit(self) -> None:
        """Move what distinguishes rows from columns to the titles of blocks, until the columns fit."""
        while True:
            identity = [self._identity(name) for name in self._inside if name not in self._named]
            size = [column for column in self._columns if column.key == "size"]
            figures = [column for column in self._columns if column.key != "size"]
            self._layout = TextLayout(Frame([*size, *identity, *figures], self._rows, style=_style), self._room)
            lost = any(column.key in _BASE for column in self._layout.dropped)
            if not self._inside or self._room is None or not (lost or self._layout.line_width > self._room):
                return
            del self._inside[0]

    def _identity(self, name: str) -> Column[Row]:
        texts = ["out of place"] if name == "in_place" else self._plan.some(name)
        return replace(identity_column(name), key=name, least=max([len(printable(text)) for text in texts], default=0))

    def _begin(self, row: Row) -> list[Line]:
        """Return the title and the headings if the row begins a block."""
        names = [name for name in SERIES if name not in self._inside]
        block = tuple(getattr(row, name) for name in names)
        limit = _limit(row)
        if block == self._block and (limit is None or self._limit is None or limit == self._limit):
            self._limit = self._limit or limit
            return []
        block_limits = (_limit(block_row) for block_row in self._rows if tuple(getattr(block_row, name) for name in names) == block)
        lines = [] if self._block is None else [Line("")]
        self._block = block
        self._limit = limit or next(filter(None, block_limits), None)
        facts_of_table = facts_of_all(self._plan)
        facts = [name_value(row, name) for name in names[2:] if name not in facts_of_table]
        if self._limit:
            facts.append(f"limited by {self._limit}")
        title = " · ".join([f"{row.operation} over {row.backend}", *filter(None, facts)])
        return [*lines, *text_lines(title, self._room, "head"), Line(self._layout.heading(), "head")]

    def _absent(self, row: Row) -> list[Line]:
        """Return the lines of an n/a row: what distinguishes it, and the reason in place of the figures."""
        widths = zip(self._layout.columns, self._layout.widths, strict=True)
        shown = [(column, width) for column, width in widths if column.key == "size" or column.key in self._inside]
        texts = [column.pad(printable(column.text(row)), width) for column, width in shown]
        return list(text_lines(GAP.join([*texts, not_available(row)]), self._room, "na", GAP * 2))


def _limit(row: Row) -> str | None:
    """Return what limits a row; None if it has no percentage, or if the user gave the expected rate."""
    if row.comparison is None or row.comparison.ceiling.kind == "given" or row.ranks == 1:
        return None
    return row.comparison.ceiling.limited_by


def sub_lines(row: Row, view: View, room: int | None) -> Iterable[Line]:
    """Yield the lines below a row: wrong data always, its flags if they are wanted."""
    details = [f"{wrong(row)}: {row.wrong_detail or 'no detail'}"] if row.wrong else []
    if view.verbose and row.flags:
        details.append(f"flags: {remarks(row)}")
    if view.verbose and two_modes(row):
        details.append(f"two values: {times(row, ' µs')}")
    for text in details:
        yield from text_lines(f"{GAP * 2}{text}", room, "wrong" if row.wrong else "foot", GAP * 3)


def _style(row: Row) -> str:
    if row.na is not None:
        return "na"
    if row.wrong:
        return "wrong"
    return "" if quality_word(row) in (OK, NOTHING) else "doubtful"
