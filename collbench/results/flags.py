"""The flags of rows: the code that is stored, a short name for tables, what it means, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Flag(msgspec.Struct, frozen=True):
    """A flag of a row, with its meaning.

    code      in the `flags` of stored rows, in CSV and in JSON
    name      in tables and on pages
    text      what it means, without a final period
    action    what to do about it; "" if there is nothing to do
    doubtful  whether the time or its confidence interval may be wrong
    within    whether that holds for a single launch only: several launches show the effect in their spread
    """

    code: str
    name: str
    text: str
    action: str = ""
    doubtful: bool = False
    within: bool = False

    def render(self) -> str:
        """Return the meaning, and what to do: "the median moved between … ; use more warm-up (-w)"."""
        return f"{self.text}; {self.action}" if self.action else self.text


FLAGS = {
    flag.code: flag
    for flag in (
        Flag(
            "slowed", "slowed",
            "`--slowed` made the backend slower on purpose (evidence.slowed), to test a gate: the row does not measure the machine",
        ),
        Flag(
            "oversubscribed", "oversubscribed",
            "more ranks, with the busy threads of their library (oneCCL), than cores: waiting ones take the CPU from working ones, so no "
            "percentage is shown",
            "use fewer ranks, or Open MPI; for oneCCL, CCL_WORKER_OFFLOAD=0",
        ),
        Flag(
            "no_overlap", "no overlap",
            "the backend cannot start an operation without waiting for it: operations and computing ran one after the other",
            "replay on gloo, mpi or torch-nccl",
        ),
        Flag(
            "cpu_shared", "CPU shared",
            "other work used the CPUs: a hypervisor took more than 2 %, or two ranks could not run at once (no state probe)",
            "measure on an idle machine", doubtful=True,
        ),
        Flag(
            "threads_share_cores", "threads share cores",
            "the library's threads share the cores with the ranks (more threads ran than there are cores), and hardly anything else ran "
            "there: a thread that wakes up waits for a time slice of another, so times vary by a multiple; evidence.threads has the counts",
            "use a host with more cores",
        ),
        Flag(
            "python_messages", "Python messages",
            "Python moved the bytes: always on zmq; on socket if the native code is not built, where a message reads 10 to 15 µs too slow",
        ),
        Flag(
            "python_loop", "Python loop",
            "timed by the Python loop, because the native loop is not built: small sizes read up to 0.5 µs too slow",
        ),
        Flag(
            "straggler", "straggler",
            "a rank did not run for 1 s or more (stopped, swapped out or suspended); evidence.paused_s has the rank and the time",
            "measure again",
        ),
        Flag(
            "retransmits", "retransmits",
            "0.1 % or more of a host's TCP segments were lost: normal on a full path; evidence.network has the counts by host",
        ),
        Flag(
            "lossy_path", "lossy path",
            "a host lost 0.3 % or more of its TCP segments, one by one: full queues do not explain it; evidence.network has the counts",
            "check cables, optics and switch ports",
        ),
        Flag(
            "port_errors", "port errors",
            "a port counted damaged packets or errors of its link; evidence.network has the counters",
            "check cables, optics and switch ports",
        ),
        Flag(
            "link_flapped", "link flapped",
            "a link of a host went down or up during the measurement; evidence.network has the interface and the count", "measure again",
        ),
        Flag(
            "reference_disturbed", "reference disturbed",
            "the measured reference (between ranks of the host) changed by more than 15 % between its repetitions, took too long, or was "
            "exceeded by more than 20 %, so no percentage is shown", "measure on an idle machine",
        ),
        Flag(
            "above_bound", "above hard limit",
            "the rate exceeds the hard limit: the bytes took another path (such as shared memory), or the rate of the link is wrong",
        ),
        Flag(
            "two_modes", "bimodal",
            "the samples gather around two values, and both are shown; busbw and percentage are those of the median",
            "find what changes between them (clocks, other jobs, a switch of algorithm)", doubtful=True,
        ),
        Flag(
            "drift", "drift",
            "the median moved between the first and the last third of the samples, so the confidence interval is not valid",
            "use more warm-up (-w), and check for heat and other jobs", doubtful=True, within=True,
        ),
        Flag(
            "state_flip", "unstable state",
            "the state of the machine changed during the case (state probe), and again during its repetition", "measure on an idle machine",
            doubtful=True,
        ),
        Flag(
            "remeasured", "measured again",
            "the state of the machine changed during the case (state probe): the row is from the repetition",
        ),
        Flag(
            "skew_limited", "start skew",
            "start skew exceeds 10 % of the time: the time may be overestimated by that much", "use --mode batched or larger sizes",
            doubtful=True,
        ),
        Flag(
            "constant", "constant",
            "all samples are equal, because the clock is too coarse to show their spread", "use --mode batched", doubtful=True,
        ),
        Flag(
            "clock_stepped", "clock stepped",
            "samples that no clock can give (NaN or negative) were removed; evidence has their number", "check the clock source",
            doubtful=True,
        ),
        Flag(
            "parts_left_out", "parts left out",
            "--max-time was used up before every exchange had been measured alone", "use a longer --max-time, or --no-parts",
        ),
        Flag("budget_exceeded", "budget exceeded", "one iteration takes longer than --max-time", "use a longer --max-time"),
        Flag(
            "few_samples", "few samples",
            "fewer than 60 samples, so the confidence interval is wide", "use a longer --max-time or a larger -n",
        ),
        Flag(
            "target_missed", "wide interval",
            "the confidence interval is wider than --precision", "use a longer --max-time or a larger -n, or accept a larger --precision",
            doubtful=True, within=True,
        ),
        Flag(
            "warmup_unsettled", "not converged",
            "warm-up ended at its limit before the times converged", "use more warm-up (-w)", doubtful=True, within=True,
        ),
        Flag(
            "missing_launches", "missing launches",
            "some launches lack the case, and the interval is that of the others", "repeat the launches that ended early",
        ),
        Flag(
            "size_rounded", "size rounded",
            "the size was rounded down to a multiple of the element size times the parts; or a part of uneven traffic is more than 1 % off "
            "its share",
        ),
        Flag(
            "imported", "imported",
            "read from the output of another tool: its own statistic, mostly without interval and samples; evidence has its name",
        ),
        Flag(
            "ranks_doubtful", "ranks doubtful",
            "the bandwidths that the tool printed do not fit the number of ranks", "check --ranks and the log",
        ),
        Flag(
            "their_tool", "external tool",
            "measured by an external tool (iperf3, fi_pingpong, ucx_perftest or perftest): its own statistic; the JSON row has its name, "
            "version and commands",
        ),
        Flag("simulated", "simulated", "computed by a seeded model, not measured on this machine"),
        Flag(
            "other_path", "other path",
            "bytes that had to cross between hosts did not pass through their NICs, so no percentage is shown; evidence has the counts "
            "(an MPI may share memory between namespaces or containers of one machine)",
        ),
        Flag(
            "launch_bound", "launch-bound",
            "the host needs 80 % or more of the device's time to enqueue the calls, so the row times the calls", "use --mode graph",
        ),
        Flag("shared_gpu", "shared GPU", "several ranks use one GPU: results are right, but rates are not those of the machine"),
        Flag(
            "no_interval", "no interval",
            "fewer than 6 samples within the time limit, so the median has no confidence interval", "use a longer --max-time",
        ),
        Flag("unverified", "unverified", "the tool that moved the bytes does not compare received with sent data"),
        Flag("path_unproven", "path unproven", "no counter shows which link carried the bytes, so no percentage is shown"),
        Flag("wrong_data", "wrong data", "the received data differs from the sent data"),
        Flag(
            "asynchronous", "asynchronous",
            "workers do not wait for each other: the time is that of one worker's round, of the slowest worker",
        ),
        Flag(
            "too_many_updates", "too many updates",
            "more updates than the data type of the sums adds up exactly, so the sums were not verified", "use --dtype float64",
        ),
        Flag(
            "model_differs", "model differs",
            "the framework exchanged something else than collbench expects of it: its regime in collbench does not model this version",
            "report the note below the table",
        ),
        Flag(
            "not_run_on_hardware", "not run on hardware",
            "the backend was written from the headers of its libraries and has run on a test double only, never on such a GPU",
            "compare with rccl-tests on the same machine",
        ),
        Flag(
            "dip", "dip",
            "a smaller size moves at least 5 % more bandwidth, beyond both intervals and what the measured reference loses",
            "find the algorithm, protocol or buffer that changes between both sizes",
        ),
        Flag("pairs_at_once", "pairs at once", "all pairs ran at the same time and shared the links between them"),
    )
}  # fmt: skip

# Codes of flags that make the time or its interval doubtful; those of a single launch do not count where a row combines several.
DOUBTFUL = frozenset(code for code, flag in FLAGS.items() if flag.doubtful)
WITHIN_A_LAUNCH = frozenset(code for code, flag in FLAGS.items() if flag.within)


def flag_name(code: str) -> str:
    """Return the name of a flag for tables; the code itself for one of a later version."""
    return FLAGS[code].name if code in FLAGS else code


def flag_names(codes: Iterable[str]) -> list[str]:
    """Return the names of flags for tables, in the given order."""
    return [flag_name(code) for code in codes]


def explain(codes: Iterable[str]) -> list[str]:
    """Return a line for each flag that occurs and is known, in the order of FLAGS: "drift: the median moved …"."""
    present = set(codes)
    return [f"{flag.name}: {flag.render()}" for code, flag in FLAGS.items() if code in present]


def named(codes: Iterable[str]) -> list[str]:
    """Return one line with the names of the known flags that occur, and the command that explains them; no line without any."""
    present = set(codes)
    names = [flag.name for code, flag in FLAGS.items() if code in present]
    return [f"flags (`collbench explain FLAG` explains one): {', '.join(names)}"] if names else []
