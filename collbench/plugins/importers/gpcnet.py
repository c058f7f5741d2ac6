"""Read the output of GPCNeT's network_test and network_load_test: tables of means and percentiles (source of 1.3).

A rate is MiB/s per rank, a latency is in microseconds. 99 % of all samples of all ranks are better than the value "99%".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts, extent_of, start_facts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import Quantiles, RowKind, short, whole
from collbench.plugins.importers.table import MEBIBYTES, Layout, TextColumn, TextTable, cells

_TITLE = re.compile(r"(?P<program>NetworkLoad|Network) Tests v(?P<version>[\d.]{1,10})\s*$")
_SECTION = re.compile(
    r"^(?!.*Key Results).{0,400}?\|\s+(?P<section>Isolated Network Tests|Isolated Congestion Tests"
    r"|Network Tests running with Congestion Tests)\s*(?P<congestor>[^|]{0,60}?)\s*\|\s*$"
)
_NAME = re.compile(r"(.{3,40}?) \(\s*(\d{1,12}) B\)$")
_TRAFFIC = {"Isolated Network Tests": "", "Isolated Congestion Tests": "congestor alone"}
_LAYOUT = Layout(
    columns=(
        TextColumn("Name", "name", shown=False),
        TextColumn("Avg", "time"),
        TextColumn("99%", "p99"),
        TextColumn("Units", "unit", shown=False),
        TextColumn(r"\b[\w%]{1,20}(?= +\|)"),
    ),
    headings=re.compile(r"\|\s+Name \|"),
    figures=re.compile(r"\s*\|(?! +Name \||.*Key Results)"),
    words=cells,
    begins=_SECTION,
    shared=(_TITLE, re.compile(r"Test with (?P<ranks>\d{1,7}) MPI ranks \((?P<nodes>\d{1,7}) nodes\)")),
    ends=re.compile("Key Results"),
)


def _runs(table: TextTable, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    context = contexts.at(table.number)
    section = table.titled("section")
    traffic = short(" ".join(_TRAFFIC.get(section, f"with congestors {table.facts['congestor']}").split())) or None
    ranks, nodes = (whole(table.facts.get(name, "")) for name in ("ranks", "nodes"))
    extent = extent_of(context, user_input, ranks, f"the table at line {table.number}")
    statistic = "the mean over all samples of all ranks"
    rows = []
    for figures in table.figures():
        title = _NAME.match(figures.words["name"])
        mean = figures.values.get("time")
        unit = figures.words.get("unit", "")
        if title is None or not mean or not unit.startswith(("MiB/s", "usec")):
            table.unreadable.append(figures.line)
            continue
        size = int(title[2])
        is_rate = unit.startswith("MiB/s")
        operation = "gpcnet_" + "_".join(re.findall(r"[a-z0-9]+", title[1].lower()))
        kind = RowKind(
            operation, "mpi", "mpi", "float64", extent.ranks, nodes or extent.nodes, statistic, mode="isolated",
            like="p2p_bandwidth" if is_rate else None, also={"traffic": traffic},
        )  # fmt: skip
        time_s, p99 = (
            figure and (size / (figure * MEBIBYTES) if is_rate else figure / 1e6) for figure in (mean, figures.values.get("p99"))
        )
        row = kind.row_if_valid(size, time_s, figures.line, spread=Quantiles(p99=p99 or None), printed=figures.printed)
        if row:
            rows.append(row)
    missing = lacks(MissingItem.INTERVAL, MissingItem.SAMPLES, MissingItem.RANK_DATA, MissingItem.HOSTS, MissingItem.VERIFICATION)
    facts = start_facts(context)
    if traffic:
        facts["congestion"] = traffic
    program = "network_load_test" if table.facts.get("program") == "NetworkLoad" else "network_test"
    version = table.facts.get("version") or None
    yield ImportedTable("gpcnet", version, program, statistic, rows, (), facts, missing, table.doubts(), extent.contradicted)


GPCNET = Importer(
    "gpcnet", "GPCNeT (network_test, network_load_test)", lines_with(_TITLE, _SECTION, words=["Tests"]), _LAYOUT.tables, _runs,
    empty="no table with figures found: GPCNeT was stopped before its first test, or rejected the number of nodes",
)  # fmt: skip
