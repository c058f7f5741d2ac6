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
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, TextTable, UserInput, without_prefixes
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import MessageRateMismatch, MissingItem, lacks
from collbench.plugins.importers.rows import Quantiles, RowKind, is_size, is_time, missing, parse_number, short, whole
from collbench.results.row import Row
from collbench.results.store import parse_object

_TITLE = re.compile(
    r"^ {0,40}(Send|Send_imm|RDMA_Write|RDMA_Write_imm|RDMA_Read|Atomic)[ _]((?:[A-Za-z]{1,20}[ _]){0,8}?)(BW|Latency)[ _]"
    r"(?:[A-Za-z]{1,20}[ _]){0,2}Test\s*$"
)
_COLUMNS = re.compile(
    r"#bytes|#iterations|#sl|BW (?:peak|average|Port\d) ?\[\w+/sec\]|MsgRate(?: Port\d)?\[Mpps\]|t_\w+\[\w+\]|99(?:\.9)?% percentile\[\w+\]"
    r"|tps average|CPU_Util\[%+\]"
)
_FACT = re.compile(
    r"(Dual-port|Device|Number of qps|Transport type|Connection type|Using SRQ|TX depth|RX depth|Post List|CQ Moderation|Mtu|Link type"
    r"|GID index|Max inline data|Outstand reads|Use ROCm memory)\s*:\s*([^\t\n]{1,60})"
)
_RATE = re.compile(r"BW average ?\[(MB|MiB|Gb)/sec\]")
_BYTES = {"MB": 2**20, "MiB": 2**20, "Gb": 1e9 / 8}
_PROGRAMS = {"Send": "send", "Send_imm": "send", "RDMA_Write": "write", "RDMA_Write_imm": "write", "RDMA_Read": "read", "Atomic": "atomic"}
_JSON_PART = re.compile(r'^\s*"?([\w. -]{1,40})"?\s*:\s*\{\s*$')
_OTHER_RESULTS = re.compile(r"^\s{0,40}[A-Z][\w ]{0,40} results:\s*$")  # "Local results:", "Remote results:"
_VALIDATED = "VALIDATION: PASSED"
_JSON_KEY = re.compile(r'^\s*"?([\w.* ]{1,40}?)"?\s*:\s*"?([^",{}]{0,200})"?\s*,?\s*$')
_LONGEST_LINE = 400
_US = 1e-6
_QUANTILES = {"min": "t_min[usec]", "p99": "99% percentile[usec]", "max": "t_max[usec]"}


@dataclass
class _Test(TextTable):
    """One program's output.

    name       the verb of its title; words: what follows it
    complete   whether the figures of the test were printed, so that the next ones are those of one direction
    validated  whether the tool reports that the received data is right
    """

    words: str = ""
    latency: bool = False
    device: str = "cpu"
    complete: bool = False
    validated: bool = False
    from_json: bool = False


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the title of a test, or begins one in JSON."""
    return _is_json(lines) or any("Test" in line and _TITLE.match(line) for line in lines)


def _tests(lines: Sequence[str]) -> list[_Test]:
    tests = list(_in_json(lines)) if _is_json(lines) else _in_text(without_prefixes(lines))
    return [test for test in tests if test.lines or test.bad]


def _is_json(lines: Sequence[str]) -> bool:
    return any("test_info" in line and re.search(r'"?test_info"?\s*:\s*\{', line) for line in lines)


def _in_text(lines: Sequence[str]) -> list[_Test]:
    tests, cuda = list[_Test](), False
    for at, line in enumerate(lines, start=1):
        if title := _TITLE.match(line) if "Test" in line else None:
            tests.append(_Test(at, title[1], words=title[2], latency=title[3] == "Latency", device="cuda" if cuda else "cpu"))
            cuda = False
            continue
        cuda = cuda or "initializing CUDA" in line
        if not tests:
            continue
        test, words = tests[-1], line.split()
        test.complete = test.complete or _OTHER_RESULTS.match(line) is not None
        test.validated = test.validated or _VALIDATED in line
        if test.complete:
            continue
        if "#bytes" in line:
            test.columns = _COLUMNS.findall(line)
        elif not test.columns:
            test.facts |= {name: short(value.strip()) for name, value in _FACT.findall(line)}
            test.device = "rocm" if test.facts.get("Use ROCm memory") == "ON" else test.device
        elif words and all(parse_number(word) is not None or word in ("nan", "-nan", "inf") for word in words):
            test.add(at, words)
    return tests


def _in_json(lines: Sequence[str]) -> Iterator[_Test]:
    """Yield tests from lines with one key each: 4.5 writes them without quotes, which is not valid JSON."""
    parts: dict[str, dict[str, str]] = {}
    part, begun = "", 0
    with suppress(ValueError):
        lines = json.dumps(parse_object("\n".join(lines).encode()), indent=1).splitlines()
    for at, long_line in enumerate(lines, start=1):
        line = long_line if len(long_line) <= _LONGEST_LINE else ""
        if "}" in line:
            part = ""
        elif opened := _JSON_PART.match(line):
            part = opened[1]
            if part == "test_info":
                if parts:
                    yield _of_json(parts, begun)
                parts, begun = {}, at
            part = part if part not in parts else ""
            parts[part] = {}
        elif part and (found := _JSON_KEY.match(line)):
            parts[part][found[1]] = found[2].strip()
    if parts:
        yield _of_json(parts, begun)


def _of_json(parts: Mapping[str, Mapping[str, str]], line: int) -> _Test:
    """Return the test. Its keys are the text's columns. The unit of the rates is not printed, and follows from the message rate."""
    info, results = parts.get("test_info", {}), parts.get("results", {})
    title = _TITLE.match(info.get("test", "")[:200])
    if title is None or not results:
        raise UsageError(f'line {line}: "test_info" with a known test, or "results", is missing in the JSON of perftest')
    named = {_JSON_FACTS.get(name, name): short(user_input) for name, user_input in info.items() if name != "test"}
    device = "cuda" if "cuda_device" in info else "rocm" if info.get("Use_ROCm_memory") == "ON" else "cpu"
    words = title[2].replace("_", " ")
    test = _Test(line, title[1], named, words=words, latency=title[3] == "Latency", device=device, from_json=True)
    figures = {_JSON_COLUMNS[name]: user_input for name, user_input in results.items() if name in _JSON_COLUMNS}
    if not test.latency:  # MiB or Gb, the unit with which rate and message rate agree
        size, rate, messages = (parse_number(figures.get(name, "")) for name in ("#bytes", "BW average", "MsgRate[Mpps]"))
        fitting = [unit for unit in ("MiB", "Gb") if size and rate and messages and _agree(rate, messages, size / _BYTES[unit])]
        if len(fitting) != 1:
            raise UsageError(f"line {line}: the unit of the rate is missing in perftest's JSON: import the text output instead")
        figures[f"BW average[{fitting[0]}/sec]"] = figures.pop("BW average")
    test.columns, test.lines = list(figures), [(line, figures)]
    return test


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


def _runs(test: _Test, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    if test.latency and _in_cycles(test):
        raise UsageError(f"line {test.number}: the times are CPU cycles (-C): run the test again without -C")
    both_ways = "Bidirectional" in test.words  # rates count both directions
    if test.latency:
        half = "of whole round trips" if test.name in ("RDMA_Read", "Atomic") else "of half the round trips"
        operation, statistic = "p2p_latency", f"{'median' if 't_typical[usec]' in test.columns else 'mean'} {half}"
    else:
        operation = "p2p_bidirectional" if both_ways else "p2p_bandwidth"
        statistic = "mean per message: the rate over all messages, turned into a time"
    streams, depth = (whole(str(test.facts.get(name, ""))) for name in ("Number of qps", "TX depth"))
    kind = RowKind(
        operation, "verbs", "verbs", "uint8", 2, user_input.nodes, statistic, device=test.device, mode="batched",
        window=None if test.latency else depth, also={"protocol": test.name, "streams": streams or 1}, verified=test.validated,
    )  # fmt: skip
    rows: list[Row] = []
    for line, figures in test.lines:
        size = whole(figures.get("#bytes", ""))
        if size is None or not is_size(size):
            continue
        if test.latency:
            micros = parse_number(figures.get("t_typical[usec]", figures.get("t_avg[usec]", "")))
            time_s = None if micros is None else micros * _US
        else:
            rate, _ = _rate(figures)
            time_s = size * (2 if both_ways else 1) / rate if rate else None
        if time_s is None or not is_time(time_s):
            rows.append(kind.without_figures(size, size, line, "the output has no valid time"))
            continue
        spread = {name: value * _US for name, title in _QUANTILES.items() if (value := parse_number(figures.get(title, ""))) is not None}
        printed = {name: figure for name, figure in figures.items() if name != "#bytes"}
        wrong = 0 if test.validated else None
        rows.append(kind.row(size, time_s, line=line, spread=Quantiles(**spread), wrong=wrong, printed=printed))
    doubts = test.doubts()
    if inconsistent := [line for line, figures in test.lines if not _is_consistent(figures)]:
        doubts.append(MessageRateMismatch(len(inconsistent), inconsistent[0]))
    program = f"ib_{_PROGRAMS[test.name]}_{'lat' if test.latency else 'bw'}"
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION)]
    unknown += [] if test.validated else lacks(MissingItem.VERIFICATION)
    yield ImportedTable("perftest", None, program, statistic, rows, facts=test.facts, missing=unknown, doubts=doubts)


def _in_cycles(test: _Test) -> bool:
    """Return whether the times are cycles: by their titles, or in JSON, which has no unit, because all are multiples of half a cycle.

    Microseconds have two digits: one in 50 is such a multiple, so all five of them in at most one of 100,000 outputs (three that differ).
    """
    if any("[cycles]" in title for title in test.columns):
        return True
    titles = [*_QUANTILES.values(), "t_typical[usec]", "99.9% percentile[usec]"]
    times = [parse_number(figures[title]) for _, figures in test.lines for title in titles if title in figures]
    return test.from_json and len(times) >= len(titles) and all(time is not None and time > 1 and time % 0.5 == 0 for time in times)


def _rate(figures: Mapping[str, str]) -> tuple[float | None, float]:
    """Return the average rate in bytes per second, and the bytes of its printed unit; None without a rate."""
    for title, figure in figures.items():
        if unit := _RATE.search(title):
            value = parse_number(figure)
            return value * _BYTES[unit[1]] if value else None, _BYTES[unit[1]]
    return None, 1.0


def _is_consistent(figures: Mapping[str, str]) -> bool:
    """Return whether the rate, if it is printed, fits the message rate."""
    rate, unit = _rate(figures)
    size, messages = parse_number(figures.get("#bytes", "")), parse_number(figures.get("MsgRate[Mpps]", ""))
    return not (size and messages and rate) or _agree(rate / unit, messages, size / unit)


PERFTEST = Importer(
    "perftest", "perftest (ib_write_bw, ib_read_lat …), text and JSON", knows, _tests, _runs, output="perftest", ranks=2, tagged=True
)
