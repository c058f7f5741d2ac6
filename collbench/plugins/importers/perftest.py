"""Read the output of perftest's programs (ib_write_bw, ib_read_lat, …), as text or with --out_json.

The figures (source of July 2026, perftest_parameters.c): a rate is the bytes of all messages by the time of all, over all queue pairs.
MB and MiB are 2**20 bytes, Gb are 10**9 bits; "Bidirectional" counts both directions. A latency is half the round trip of a write or
send, and the whole of a read or an atomic; t_typical is the median. Received data is compared only by versions that print "VALIDATION:".
--report-both prints the figures of each direction below those of both; only those of both are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, without_prefixes
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import MessageRateMismatch, MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, missing, parse_number, short, whole
from collbench.plugins.importers.table import MICROSECONDS, Figures, Layout, TextColumn, TextTable
from collbench.results.store import parse_object

_TITLE = re.compile(
    r"^ {0,40}(?P<verb>Send|Send_imm|RDMA_Write|RDMA_Write_imm|RDMA_Read|Atomic)[ _]"
    r"(?P<words>(?:[A-Za-z]{1,20}[ _]){0,8}?)(?P<kind>BW|Latency)[ _](?:[A-Za-z]{1,20}[ _]){0,2}Test\s*$"
)
_FACT = re.compile(
    r"(?P<name>Dual-port|Device|Number of qps|Transport type|Connection type|Using SRQ|TX depth|RX depth|Post List|CQ Moderation|Mtu"
    r"|Link type|GID index|Max inline data|Outstand reads|Use ROCm memory)\s*:\s*(?P<value>[^\t\n]{1,60})"
)
_BYTES = {"MB": 1 << 20, "MiB": 1 << 20, "Gb": 1e9 / 8}
_US = r"\[usec\]"
_LAYOUT = Layout(
    columns=(
        TextColumn("#bytes", "size", shown=False),
        TextColumn(rf"t_typical{_US}", "time", MICROSECONDS),
        TextColumn(rf"t_avg{_US}", "time", MICROSECONDS),
        TextColumn(rf"t_min{_US}", "min", MICROSECONDS),
        TextColumn(rf"99% percentile{_US}", "p99", MICROSECONDS),
        TextColumn(rf"t_max{_US}", "max", MICROSECONDS),
        *(TextColumn(rf"BW average ?\[{unit}/sec\]", "rate", size) for unit, size in _BYTES.items()),
        TextColumn(r"MsgRate\[Mpps\]", "messages"),
        TextColumn(r"t_\w+\[\w+\]|99(?:\.9)?% percentile\[\w+\]", "other_time"),
        TextColumn(r"BW (?:peak|average|Port\d) ?\[\w+/sec\]|MsgRate Port\d\[Mpps\]|BW peak", "other_rate"),
        TextColumn(r"#iterations|#sl|tps average|CPU_Util\[%+\]"),
    ),
    headings=re.compile("#bytes"),
    figures=re.compile(r"\s*\d+\s"),
    begins=_TITLE,
    before=(re.compile("(?P<cuda>initializing CUDA)"),),
    facts=(_FACT,),
    remarks=re.compile("VALIDATION: PASSED"),
    ends=re.compile(r"^\s{0,40}[A-Z][\w ]{0,40} results:\s*$"),  # "Local results:", "Remote results:"
)
_PROGRAMS = {"Send": "send", "Send_imm": "send", "RDMA_Write": "write", "RDMA_Write_imm": "write", "RDMA_Read": "read", "Atomic": "atomic"}
_JSON_PART = re.compile(r'^\s*"?([\w. -]{1,40})"?\s*:\s*\{\s*$')
_JSON_KEY = re.compile(r'^\s*"?([\w.* ]{1,40}?)"?\s*:\s*"?([^",{}]{0,200})"?\s*,?\s*$')
_LONGEST_LINE = 400
_TIMES = 5  # in the JSON of a latency test, without mean and standard deviation
_INTERNAL = ("verb", "words", "kind", "cuda", "json")  # facts of a table that are not among the printed ones


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the title of a test, or begins one in JSON."""
    return _is_json(lines) or any("Test" in line and _TITLE.match(line) for line in lines)


def _tests(lines: Sequence[str]) -> list[TextTable]:
    tests = _in_json(lines) if _is_json(lines) else _LAYOUT.tables(without_prefixes(lines))
    return [test for test in tests if test.is_begun]


def _is_json(lines: Sequence[str]) -> bool:
    return any("test_info" in line and re.search(r'"?test_info"?\s*:\s*\{', line) for line in lines)


def _in_json(lines: Sequence[str]) -> Iterator[TextTable]:
    """Yield tests from lines with one key each: 4.5 writes them without quotes, which is not valid JSON."""
    parts: dict[str, dict[str, str]] = {}
    part = ""
    first_line = 0
    with suppress(ValueError):
        lines = json.dumps(parse_object("\n".join(lines).encode()), indent=1).splitlines()
    for number, long_line in enumerate(lines, start=1):
        line = long_line if len(long_line) <= _LONGEST_LINE else ""
        if "}" in line:
            part = ""
        elif opened := _JSON_PART.match(line):
            part = opened[1]
            if part == "test_info":
                if parts:
                    yield _table_of_json(parts, first_line)
                parts = {}
                first_line = number
            part = part if part not in parts else ""
            parts[part] = {}
        elif part and (entry := _JSON_KEY.match(line)):
            parts[part][entry[1]] = entry[2].strip()
    if parts:
        yield _table_of_json(parts, first_line)


def _table_of_json(parts: Mapping[str, Mapping[str, str]], line: int) -> TextTable:
    """Return the test. Its keys are the text's columns. The unit of the rates is not printed, and follows from the message rate."""
    info = parts.get("test_info", {})
    results = parts.get("results", {})
    title = _TITLE.match(info.get("test", "")[:200])
    if title is None or not results:
        raise UsageError(f'line {line}: "test_info" with a known test, or "results", is missing in the JSON of perftest')
    facts = {_JSON_FACTS.get(name, name): text for name, text in info.items() if name != "test"}
    facts |= {**title.groupdict(), "words": title["words"].replace("_", " "), "json": "yes"}
    if "cuda_device" in info:
        facts["cuda"] = "yes"
    figures = {_JSON_COLUMNS[name]: text for name, text in results.items() if name in _JSON_COLUMNS}
    if title["kind"] != "Latency":  # MiB or Gb, the unit with which rate and message rate agree
        size, rate, messages = (parse_number(figures.get(name, "")) for name in ("#bytes", "BW average", "MsgRate[Mpps]"))
        fitting = [unit for unit in ("MiB", "Gb") if size and rate and messages and _agree(rate, messages, size / _BYTES[unit])]
        if len(fitting) != 1:
            raise UsageError(f"line {line}: the unit of the rate is missing in perftest's JSON: import the text output instead")
        figures[f"BW average[{fitting[0]}/sec]"] = figures.pop("BW average")
    columns = [(heading, column) for heading in figures for _, column in _LAYOUT.columns_in(f"#bytes {heading}")[-1:]]
    return TextTable(line, _LAYOUT, facts, columns, [(line, figures)])


_JSON_FACTS = {"Number_of_qps": "Number of qps", "TX_depth": "TX depth", "Connection_type": "Connection type", "Link_type": "Link type"}
_JSON_COLUMNS = {
    "MsgSize": "#bytes", "n_iterations": "#iterations", "BW_peak": "BW peak", "BW_average": "BW average", "MsgRate": "MsgRate[Mpps]",
    "t_min": "t_min[usec]", "t_max": "t_max[usec]", "t_typical": "t_typical[usec]", "t_avg": "t_avg[usec]", "t_stdev": "t_stdev[usec]",
    "percentile_99": "99% percentile[usec]", "percentile_99.9": "99.9% percentile[usec]", "tps_average": "tps average",
    "CPU_util": "CPU_Util[%]",
}  # fmt: skip


def _agree(rate: float, messages: float, size: float) -> bool:
    """Return whether a rate is that of so many million messages of a size, within the printed digits: two and six."""
    return abs(rate - messages * 1e6 * size) <= 1.02 * (0.005 + 0.5 * size)


def _runs(test: TextTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    verb = test.titled("verb")
    is_latency = test.facts["kind"] == "Latency"
    if is_latency and _in_cycles(test):
        raise UsageError(f"line {test.number}: the times are CPU cycles (-C): run the test again without -C")
    both_ways = "Bidirectional" in test.facts["words"]  # rates count both directions
    if is_latency:
        half = "of whole round trips" if verb in ("RDMA_Read", "Atomic") else "of half the round trips"
        operation = "p2p_latency"
        statistic = f"{'median' if 't_typical[usec]' in test.headings else 'mean'} {half}"
    else:
        operation = "p2p_bidirectional" if both_ways else "p2p_bandwidth"
        statistic = "mean per message: the rate over all messages, turned into a time"
    facts = {name: short(value) for name, value in test.facts.items() if name not in _INTERNAL}
    streams, depth = (whole(facts.get(name, "")) for name in ("Number of qps", "TX depth"))
    device = "rocm" if "ON" in (facts.get("Use ROCm memory"), facts.get("Use_ROCm_memory")) else "cpu"
    validated = bool(test.remarks)
    kind = RowKind(
        operation, "verbs", "verbs", "uint8", 2, user_input.nodes, statistic, "cuda" if test.facts.get("cuda") else device, mode="batched",
        window=None if is_latency else depth, also={"protocol": verb, "streams": streams or 1}, verified=validated,
    )  # fmt: skip
    rows = test.rows(kind, wrong=0 if validated else None, ways=2 if both_ways else 1)
    doubts = test.doubts()
    unit = next((column.unit for _, column in test.columns if column.field == "rate"), 1)
    inconsistent = [figures.line for figures in test.figures() if not _fits_message_rate(figures, unit)]
    if inconsistent:
        doubts.append(MessageRateMismatch(len(inconsistent), inconsistent[0]))
    program = f"ib_{_PROGRAMS[verb]}_{'lat' if is_latency else 'bw'}"
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION)]
    if not validated:
        unknown += lacks(MissingItem.VERIFICATION)
    yield ImportedTable("perftest", None, program, statistic, rows, facts=facts, missing=unknown, doubts=doubts)


def _fits_message_rate(figures: Figures, unit: float) -> bool:
    size, rate, messages = (figures.values.get(name) for name in ("size", "rate", "messages"))
    return not (size and rate and messages) or _agree(rate / unit, messages, size / unit)


def _in_cycles(test: TextTable) -> bool:
    """Return whether the times are cycles: by their titles, or in JSON, which has no unit, because all are multiples of half a cycle.

    Microseconds have two digits: one in 50 is such a multiple, so all five of them in at most one of 100,000 outputs (three that differ).
    """
    if any("[cycles]" in heading for heading in test.headings):
        return True
    times = [
        parse_number(text)
        for figures in test.figures()
        for heading, text in figures.printed.items()
        if "[usec]" in heading and heading not in ("t_avg[usec]", "t_stdev[usec]")
    ]
    return "json" in test.facts and len(times) >= _TIMES and all(time is not None and time > 1 and time % 0.5 == 0 for time in times)


PERFTEST = Importer(
    "perftest", "perftest (ib_write_bw, ib_read_lat …), text and JSON", knows, _tests, _runs, output="perftest", ranks=2, tagged=True
)
