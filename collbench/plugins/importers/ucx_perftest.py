"""Read the output of ucx_perftest: the line "Final:" of each test below its table (src/tools/perf of UCX 1.8 to 1.20).

MB are 2**20 bytes. The latency of a ping-pong is half the round trip; of a stream the tool's "overhead" is the time between messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import ceil, floor

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput
from collbench.plugins.importers.log_context import Contexts, LogContext, last_option, start_facts
from collbench.plugins.importers.notes import ImportDoubt, MissingItem, MixedMemory, SizeMismatch, lacks
from collbench.plugins.importers.rows import RowKind, is_size, is_time, missing, parse_number, short, with_digits

_FACT = re.compile(r"\|\s*(API|Test|Data layout|Send memory|Recv memory|Message size|Window size|AM header size):\s*(.{1,80}?)\s*\|\s*$")
_KIND = re.compile(r"\|\s+(overhead|latency) \(usec\)\s*\|\s*bandwidth \(MB/s\)")
_COLUMNS = re.compile(r"\|\s*(?:Stage|Test)\s*\|\s*# iterations \|\s*(typical|[\d.]{1,6}%ile)")
_FINAL = re.compile(r"\s*Final:\s+(\S.*)$")
_TESTS = {"_lat": True, "_bw": False}
_DEVICES = ("cuda", "rocm", "ze-device", "ze-managed", "gaudi")  # beginnings of names of memory types
_LENGTH = re.compile(r"(\d{1,18})(?::(\d{1,6}))?")  # of one entry of -s: bytes, and how many times
_MIB = 1 << 20
_SLACK = 1e-4  # between bandwidth and message rate; a wrong size differs by more


class _UcxTest(msgspec.Struct):
    """One test: the values of its head, and the words of its last line. number: that of its last line, at first of its first one."""

    number: int
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    is_latency: bool | None = None
    percentile: str = "typical"
    final_words: list[str] | None = None


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the head of its table, or a final line."""
    if any(_KIND.search(line) for line in lines):
        return True
    finals = [final[1].split() for final in map(_FINAL.match, lines) if final]
    return any(len(words) in (4, 8) and parse_number(words[0]) for words in finals)


def _tests(lines: Sequence[str]) -> list[_UcxTest]:
    tests = [_UcxTest(1)]
    for number, line in enumerate(lines, 1):
        fact = _FACT.match(line.strip())
        kind = _KIND.search(line)
        if (fact or kind) and tests[-1].final_words is not None:
            tests.append(_UcxTest(number))
        if fact:
            tests[-1].facts[fact[1]] = short(fact[2])
        elif kind:
            tests[-1].is_latency = kind[1] == "latency"
        elif columns := _COLUMNS.search(line):
            tests[-1].percentile = columns[1]
        elif final := _FINAL.match(line):
            if tests[-1].final_words is not None:  # the same head above several sizes
                tests.append(replace(tests[-1]))
            tests[-1].number = number
            tests[-1].final_words = final[1].replace(",", "").split()
    return [test for test in tests if test.final_words is not None]


def _runs(test: _UcxTest, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    context = contexts.at(test.number)
    words = test.final_words or []
    size = _size(test, words, context)
    is_latency = test.is_latency
    if is_latency is None:
        name = next((after for word, after in zip(context.arguments, context.arguments[1:], strict=False) if word == "-t"), "")
        is_latency = next((kind for suffix, kind in _TESTS.items() if name.endswith(suffix)), None)
    figures = [parse_number(word) for word in words]
    time_s = _time(figures, size, is_latency) if len(words) in (4, 8) else None
    if is_latency is None or size is None or time_s is None or not is_time(time_s) or not is_size(size):
        lacking = "message size" if size is None else "time"
        if is_latency is None:
            lacking = "kind of test"
        raise UsageError(f"line {test.number}: the {lacking} is missing: use the whole output of the client, with the head of its table")
    # The memory types of sender and receiver: of the head, else of the command line (-m cuda,host), else the default.
    send, _, receive = short(_option(context, "-m", "--memory") or "host").partition(",")
    memory = test.facts.get("Send memory", send), test.facts.get("Recv memory", receive or send)
    device = next((name for name in _DEVICES if any(memory_type.startswith(name) for memory_type in memory)), "cpu").partition("-")[0]
    window = test.facts.get("Window size", "")
    statistic = "mean per message: the rate over all messages, turned into a time"
    if is_latency:
        statistic = "half the round trip, the median" if "%" in test.percentile else "half the round trip, typical"
    kind = RowKind(
        "p2p_latency" if is_latency else "p2p_bandwidth", "ucx", "ucx", "uint8", 2, user_input.nodes, statistic, device, mode="batched",
        window=int(window) if window.isdecimal() and len(window) < 10 and not is_latency else None,
        also={"protocol": test.facts.get("Test")}, verified=False,
    )  # fmt: skip
    titles = ["overall (usec)", "overall (MB/s)", "overall (msg/s)"]
    if len(figures) == 8:
        titles = [f"{test.percentile} (usec)"]
        titles += [f"{scope} ({unit})" for unit in ("usec", "MB/s", "msg/s") for scope in ("average", "overall")]
    printed = dict(zip(titles, figures[1:], strict=True))
    row = kind.row(size, time_s, line=test.number, evidence={"iterations": int(figures[0] or 0), "printed": printed})
    bandwidth, rate = (with_digits(words[i]) for i in ((5, 7) if len(words) == 8 else (2, 3)))
    doubts: list[ImportDoubt] = []
    if bandwidth and rate:
        slack = max(1.1 * (bandwidth[1] * _MIB + rate[1] * size), _SLACK * rate[0] * size)
        if abs(bandwidth[0] * _MIB - rate[0] * size) > slack:
            doubts.append(SizeMismatch(test.number, size))
    if memory[0] != memory[1]:
        doubts.append(MixedMemory(memory))
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION, MissingItem.VERIFICATION)]
    facts = {**test.facts, **start_facts(context)}
    program = test.facts.get("Test", "ucx_perftest")
    yield ImportedTable("ucx_perftest", None, program, statistic, [row], facts=facts, missing=unknown, doubts=doubts)


def _size(test: _UcxTest, words: Sequence[str], context: LogContext) -> int | None:
    """Return the message size by the head, else by the command line, else by bandwidth / message rate if these allow only one number."""
    printed_size = test.facts.get("Message size", "")
    if printed_size.isdecimal() and len(printed_size) < 18:
        return int(printed_size)
    typed = _option(context, "-s", "--size")
    lengths = [_LENGTH.fullmatch(entry) for entry in typed.split(",")] if typed else []
    if lengths and all(lengths):
        return sum(int(entry[1]) * int(entry[2] or 1) for entry in lengths if entry)
    bandwidth, rate = (with_digits(words[i]) if len(words) == 8 else None for i in (5, 7))
    if not bandwidth or not rate or rate[0] <= 1 or bandwidth[0] <= bandwidth[1]:
        return None
    low = (bandwidth[0] - bandwidth[1]) * _MIB / (rate[0] + rate[1])
    high = (bandwidth[0] + bandwidth[1]) * _MIB / (rate[0] - rate[1])
    powers = [1 << bit for bit in range(40) if low <= 1 << bit <= high]
    if len(powers) == 1:
        return powers[0]
    return ceil(low) if ceil(low) == floor(high) else None


def _option(context: LogContext, short_name: str, long_name: str) -> str | None:
    return last_option(context.arguments, short_name, long_name) if context.program == "ucx_perftest" else None


def _time(figures: Sequence[float | None], size: int | None, is_latency: bool | None) -> float | None:
    """Return the time in seconds. With several threads the line has four words: iterations, then latency, bandwidth and rate over all."""
    overall_latency, bandwidth = (figures[3], figures[5]) if len(figures) == 8 else (figures[1], figures[2])
    if is_latency:
        micros = (figures[1] if len(figures) == 8 else None) or overall_latency
        return micros / 1e6 if micros else None
    return size / (bandwidth * _MIB) if size and bandwidth else None


UCX_PERFTEST = Importer(
    "ucx-perftest", "ucx_perftest", knows, _tests, _runs, ranks=2,
    output="ucx_perftest (the client prints it, in a line 'Final:')",
)  # fmt: skip
