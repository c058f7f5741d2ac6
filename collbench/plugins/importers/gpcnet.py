"""Read the output of GPCNeT's network_test and network_load_test: tables of means and percentiles (source of 1.3).

A rate is MiB/s per rank, a latency is in microseconds. 99 % of all samples of all ranks are better than the value "99%".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collbench.plugins.importers.importer import ImportedTable, Importer, TextTable, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts, extent_of, start_facts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import Quantiles, RowKind, parse_number, short

_TITLE = re.compile(r"(NetworkLoad|Network) Tests v([\d.]{1,10})\s*$")
_SIZE = re.compile(r"Test with (\d{1,7}) MPI ranks \((\d{1,7}) nodes\)")
_SECTION = re.compile(
    r"\|\s+(Isolated Network Tests|Isolated Congestion Tests|Network Tests running with Congestion Tests)\s*([^|]{0,60}?)\s*\|\s*$"
)
_NAME = re.compile(r"(.{3,40}?) \(\s*(\d{1,12}) B\)$")
_TITLES = ("Avg", "99%", "Units")
_MIB = 1 << 20
_TRAFFIC = {"Isolated Network Tests": None, "Isolated Congestion Tests": "congestor alone"}


@dataclass
class _Section(TextTable):
    """One table of a program (`name`). traffic: the load that ran at the same time."""

    version: str = ""
    place: tuple[int | None, int | None] = (None, None)
    traffic: str | None = None


def _sections(lines: Sequence[str]) -> list[_Section]:
    sections: list[_Section] = []
    program, version = "network_test", ""
    place: tuple[int | None, int | None] = (None, None)
    within = False
    for at, line in enumerate(lines, 1):
        if title := _TITLE.search(line):
            program, version = ("network_load_test" if title[1] == "NetworkLoad" else "network_test"), title[2]
        elif size := _SIZE.search(line):
            place = (int(size[1]), int(size[2]))
        elif found := _SECTION.search(line):
            traffic = _TRAFFIC.get(found[1], f"with congestors{' ' + found[2] if found[2] else ''}")
            traffic = traffic and short(" ".join(traffic.split()))
            sections.append(_Section(at, program, version=version, place=place, traffic=traffic))
            within = True
        elif "Key Results" in line:
            within = False
        elif within and line.strip().startswith("|"):
            words = [word.strip() for word in line.strip().strip("|").split("|")]
            if words[0] == "Name":
                sections[-1].columns = words
            elif sections[-1].columns:
                sections[-1].add(at, words)
    return [section for section in sections if section.lines]


def _runs(section: _Section, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    ranks, nodes = section.place
    context = contexts.at(section.number)
    extent = extent_of(context, user_input, ranks, f"the table at line {section.number}")
    statistic = "the mean over all samples of all ranks"
    rows = []
    for at, words in section.lines:
        name = _NAME.match(words["Name"])
        value, worst = parse_number(words.get("Avg", "")), parse_number(words.get("99%", ""))
        if name is None or not value or any(title not in words for title in _TITLES):
            continue
        size, rate = int(name[2]), words["Units"].startswith("MiB/s")
        operation = "gpcnet_" + "_".join(re.findall(r"[a-z0-9]+", name[1].lower()))
        kind = RowKind(
            operation, "mpi", "mpi", "float64", extent.ranks, nodes or extent.nodes, statistic, mode="isolated",
            like="p2p_bandwidth" if rate else None, also={"traffic": section.traffic},
        )  # fmt: skip
        time_s, p99 = (figure and (size / (figure * _MIB) if rate else figure / 1e6) for figure in (value, worst))
        printed = {title: word for title, word in words.items() if title not in ("Name", "Units")}
        row = kind.row_if_valid(size, time_s, at, spread=Quantiles(p99=p99 or None), printed=printed)
        rows += [row] if row else []
    missing = lacks(MissingItem.INTERVAL, MissingItem.SAMPLES, MissingItem.RANK_DATA, MissingItem.HOSTS, MissingItem.VERIFICATION)
    facts = start_facts(context)
    if section.traffic:
        facts["congestion"] = section.traffic
    yield ImportedTable("gpcnet", section.version or None, section.name, statistic, rows, (), facts, missing, (), extent.contradicted)


GPCNET = Importer(
    "gpcnet", "GPCNeT (network_test, network_load_test)", lines_with(_TITLE, _SECTION, words=["Tests"]), _sections, _runs,
    empty="no table with figures found: GPCNeT was stopped before its first test, or rejected the number of nodes",
)  # fmt: skip
