"""What the words in a row's `flags` mean, once, for every output."""

from __future__ import annotations

from collections.abc import Iterable

FLAGS = {
    "slowed": "made slower on purpose by --slowed, as evidence.slowed says, to prove what a gate finds: no measurement of the machine",
    "oversubscribed": "more ranks than cores: waiting ranks hold the core that working ones need, so no percentage; use fewer, or Open MPI",
    "cpu_shared": "others took the CPUs: a hypervisor more than 2 %, or work that kept two ranks from running at once (silent canary)",
    "python_messages": "Python moved the bytes: on zmq always, as in programs that use it; on socket where the native code is not built, "
    "small sizes read 10 to 15 µs per message and stream too slow",
    "python_loop": "timed by a Python loop, since the native one is not built: small sizes read up to 0.5 µs too slow",
    "straggler": "a rank was not allowed to run at all for a second or more meanwhile (stopped, swapped out, its machine asleep): "
    "evidence.paused_s says which and for how long; measure again",
    "retransmits": "TCP of a host sent 0.1 % or more of its segments again meanwhile, so packets were lost: evidence.network has the "
    "counts by host; check cables, optics, switch ports and full queues",
    "link_flapped": "a host's link went down or up meanwhile: evidence.network says which interface and how often; measure again",
    "reference_disturbed": "the measured reference (memory copy, sum or loopback TCP) changed by more than 15 % between its repetitions: "
    "no percentage; measure on an idle machine",
    "above_bound": "faster than the link allows: the bytes took another path (shared memory?), or the link's rate was read wrongly",
    "two_modes": "the samples gather around two values, both are shown; busbw and percentage belong to the median: look for what "
    "changes between them (clocks, neighbours, a switch of algorithm)",
    "drift": "the median moved from the first to the last third of the samples: no interval holds; raise -w, look for heat and neighbours",
    "state_flip": "the machine's state changed during the cell (canary), and again when it was measured again: quieten the machine",
    "remeasured": "the machine's state changed during the cell (canary): the row is from the repeated measurement",
    "skew_limited": "the ranks left the synchronisation further apart than 10 % of the time shown: it may read too long by as much; "
    "use --mode batched or larger sizes",
    "constant": "all samples are equal: the clock is too coarse to see their spread; use --mode batched",
    "clock_stepped": "samples that no clock can give (NaN, negative) were left out, evidence has their number: look at the clock source",
    "budget_exceeded": "one iteration takes longer than --max-time: raise it",
    "few_samples": "fewer than 60 samples within the time given: the interval is wide; raise --max-time",
    "target_missed": "the interval is wider than asked for: raise --max-time or -n, or accept a larger --precision",
    "warmup_unsettled": "warm-up ended at its limit, not because the times had settled: raise -w",
    "missing_launches": "the cell is missing in some of the launches: the interval rests on the others; repeat those that broke off",
    "size_rounded": "the size asked for is no multiple of the element size times the parts, and was rounded down; or some part of uneven "
    "traffic is more than 1 % off its share",
    "imported": "read from what another tool printed: its own statistic, mostly without interval and samples; evidence names it",
    "ranks_doubtful": "the bandwidths that another tool printed contradict the number of ranks: check --ranks and the log",
    "their_tool": "said by another tool that ran here beside ours (iperf3, fi_pingpong, ucx_perftest, perftest): its own statistic; "
    "the JSON of its row says which, and has its version and commands",
    "simulated": "computed by a seeded model, not measured on this machine",
    "other_path": "bytes that had to cross between hosts are on none of their NICs: no percentage, evidence has the counts; "
    "an MPI may share memory between hosts that are namespaces or containers of one machine",
    "launch_bound": "the host needs 80 % or more of the device's time to enqueue the calls: it is them that are timed; --mode graph",
    "shared_gpu": "several ranks drive one GPU: results are right, rates say nothing of the machine",
    "no_interval": "fewer than 6 samples within the time given: the median has no interval; raise --max-time",
    "unverified": "the tool that moved the bytes does not compare what arrived",
    "path_unproven": "no counter shows which link carried the bytes, so there is no percentage",
    "wrong_data": "what arrived is not what was sent",
    "asynchronous": "no worker waits for another: times are those of a worker's round, the slowest worker's",
    "too_many_updates": "more updates than the type of the sums adds up exactly, so they were not verified: --dtype float64",
    "pairs_at_once": "all pairs ran at the same time and shared what lies between them",
}

_CELL_LETTERS = 32_767  # the most that a spreadsheet's cell holds
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")

# With one of these the time shown is not what an interval of 95 % promises.
DOUBTFUL = frozenset(
    {"two_modes", "drift", "state_flip", "skew_limited", "constant", "clock_stepped", "cpu_shared", "target_missed", "warmup_unsettled"}
)


# What one launch leaves open, the spread over several launches tells.
WITHIN_A_LAUNCH = frozenset({"drift", "target_missed", "warmup_unsettled"})


def printable(text: str) -> str:
    """`text` without anything that could move a cursor or reverse a line: such characters become "?"."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def defused(text: str) -> str:
    """`printable` text for a cell of a spreadsheet, which runs one that begins like a formula; in some countries with full-width signs.

    Cut where a spreadsheet's cell ends: readers of CSV refuse much longer ones.
    """
    text = printable(text if len(text) < _CELL_LETTERS else f"{text[: _CELL_LETTERS - 2]}…")
    return f"'{text}" if text.startswith(_FORMULA) else text


def explain(flags: Iterable[str]) -> list[str]:
    """One line for each flag that occurs and has a meaning here, in the order of FLAGS."""
    present = set(flags)
    return [f"{flag}: {meaning}" for flag, meaning in FLAGS.items() if flag in present]
