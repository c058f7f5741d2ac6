"""The options of the measuring commands: one table, and which of them each command has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.parser import (
    Parser,
    compute_scale,
    duration,
    factor,
    format_settings,
    hertz,
    natural,
    pair_numbers,
    percent,
    positive,
    rate,
    skew,
    step_choice,
    streams,
    words,
)
from collbench.operations.operation import Operation
from collbench.operations.sweep import ALGORITHMS, MODES, PROTOCOLS, REGISTRATIONS
from collbench.report.formats import FORMATS

if TYPE_CHECKING:
    from collbench.plugins.training.workloads.step import Regime

DEFAULT_TIMEOUT_S = 120.0
CASE_MAX_TIME_S = 5.0
BRIEF_S = 8.0  # of samples for each operation of a command without options; with start-up and references it answers within 15 s
BRIEF_OVERHEAD_S = 7.0  # of the whole command, in addition to these samples
CHECK_TOTAL_S = 8.0
CHECK_OVERHEAD_S = 10.0  # doctor and the verdict follow
_PAIR_MAX_TIME_S = 0.5
_PAIR_WINDOW = 16  # a sample must be so short that six fit into half a second on a link of 2 Gb/s
_STEP_MAX_TIME_S = 10.0
_NOT_LIMITED = f"setting up and verifying take some steps more (default: {_STEP_MAX_TIME_S:g})"
_LOAD_MAX_TIME_S = 10.0
_KV_MAX_TIME_S = 3.0
_BUDGET_S = 600.0
ALL = "all"  # the name of all trainings
ROW_FORMATS = tuple(name for name in FORMATS if name != "json")  # for people: json has the name jsonl


@dataclass(frozen=True)
class Option:
    """An option of measuring commands.

    flags     its spellings, the long one last
    help, metavar, parse, default, choices   as in argparse; without metavar and choices it is a switch
    fills     the field of Request, or of its budget ("budget.warmup"), that its value is; "": `cli.request` makes more of it
    needs     an operation -> whether it has the option; None: it does not depend on operations
    rivals    options with the same word here exclude each other
    dest      the name of its value, if it is not the long spelling
    more      other settings of argparse
    """

    flags: str
    help: str
    metavar: str | None = None
    parse: Callable[[str], object] | None = None
    default: Any = None
    choices: tuple[str, ...] | None = None
    fills: str = ""
    needs: Callable[[Operation], bool] | None = None
    rivals: str = ""
    dest: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of its value in the parsed arguments."""
        return self.dest or self.flags.split()[-1].lstrip("-").replace("-", "_")

    def add_to(self, group: Any) -> None:
        """Add it to a parser or a group of one."""
        settings: dict[str, Any] = {"metavar": self.metavar, "type": self.parse, "choices": self.choices, "default": self.default}
        if self.metavar is None and self.choices is None:
            settings = {"action": "store_true"}
        if self.flags.startswith("-"):
            settings["dest"] = self.name
        group.add_argument(*self.flags.split(), help=self.help, **(settings | self.more))


def moves(operation: Operation) -> bool:
    """Return whether an operation moves data: a barrier has no sizes, data types and buffers."""
    return not operation.is_barrier


def _collective(operation: Operation) -> bool:
    return not operation.pair


def _known_columns(names: str) -> str:
    """Return names of columns, before any rank starts. Raises UsageError for an unknown one."""
    from collbench.report.blocks import parse_columns

    parse_columns(names)
    return names


_DEVICE = "memory of the buffers (default: auto: cuda for nccl and torch-nccl, cpu for the others)"
_TABLE = (
    # what to measure
    Option("--sizes", "1K-1G, 1K-1G:x4, 1K-64K:+1K or 8,1K,1M; K = 1024 (default: 8 sizes from 8 to 64M, on NCCL 9 to 1G)", "SIZES",
           needs=moves),
    Option("-b", "smallest size, as in nccl-tests", "MIN", dest="minimum", needs=moves),
    Option("-e", "largest size", "MAX", dest="maximum", needs=moves),
    Option("-f", "factor between sizes (default: 2)", "FACTOR", dest="factor", needs=moves, rivals="step"),
    Option("-i", "increment between sizes", "STEP", dest="increment", needs=moves, rivals="step"),
    Option("--backend", "nccl, torch-nccl, mpi, gloo, socket (p2p), simulated … (default: nccl with GPUs, else every installed CPU "
           "backend)", "NAMES", words),
    Option("--device", _DEVICE, choices=("auto", "cpu", "cuda"), default="auto"),
    Option("-d --dtype", "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int32, int64, uint8, uint32, uint64 "
           "(default: float32)", "TYPES", words, ["float32"], needs=moves),
    Option("-o --redop", "sum, prod, min, max, avg, band, bor, bxor (default: sum)", "OPS", words, ["sum"], needs=lambda it: it.reduces),
    Option("-r --root", "root rank, or several (default: 0)", "RANKS", words, ["0"], needs=lambda it: it.rooted),
    Option("--split", "groups of ranks that run at the same time, as in nccl-tests: 'MOD 8' (rank modulo 8), 'DIV 8', 'AND 0x7' or "
           "'OR 0x7' (default: one group of all)", "SPLIT", needs=_collective),
    Option("--skew", "rank 0's part is X times the average (default: 1: equal parts)", "X", skew,
           needs=lambda it: it.uneven, rivals="traffic"),
    Option("--traffic", "bytes of each rank (alltoallv: each pair of ranks) as CSV; scaled to --sizes if set", "FILE", Path,
           needs=lambda it: it.uneven, rivals="traffic"),
    # how to measure
    Option("--mode", "isolated: synchronize before each call; pipelined: back to back; batched: synchronize before each 20 calls; graph: a "
           "CUDA graph; overlap: as --overlap (default: isolated on CPUs, pipelined on NCCL)", choices=MODES, rivals="mode"),
    Option("--overlap", "measure how much of each operation a computation of the same length hides: both alone, together, and with test "
           "calls of MPI, interleaved (backends that can start an operation: mpi, gloo, nccl)", rivals="mode"),
    Option("--buffers", "fixed: the same buffers for each call; rotating: 64 MiB of buffers in turn, on GPUs 256 MiB (default: fixed on "
           "CPUs, rotating on NCCL)", choices=("fixed", "rotating"), needs=moves),
    Option("--in-place", "use one buffer to send and to receive", needs=moves, rivals="place"),
    Option("--out-of-place", "use two buffers (default, if the library supports it)", needs=moves, rivals="place"),
    Option("--window", "messages in flight (default: 64, at most 256 MiB in all)", "W", positive, needs=lambda it: it.windowed),
    Option("--pairs", "numbers of pairs that send at the same time, rank i to rank i + N/2: 1,2,4 or all (default: all)", "NUMBERS",
           pair_numbers, (), needs=lambda it: it.aggregate),
    Option("--streams", "socket: TCP connections between two ranks, which share each message (default: 1)", "K", streams,
           needs=lambda it: it.pair and not it.one_sided),
    Option("--algorithms", f"NCCL: algorithms to force, besides NCCL's own choice: {', '.join(ALGORITHMS)}", "NAMES", words, [],
           needs=_collective),
    Option("--protocols", f"NCCL: protocols to force, with each algorithm: {', '.join(PROTOCOLS)}", "NAMES", words, [], needs=_collective),
    Option("--registration", f"NCCL: registration of the buffers: {', '.join(REGISTRATIONS)}, or several (default: none)", "WORDS", words,
           []),
    Option("--calls", "blocking; nonblocking: start, then wait (MPI_Iallreduce, async_op); persistent: start a request that is made once "
           "(MPI_Allreduce_init), or several (default: blocking)", "FORMS", words, ["blocking"]),
    Option("-n --iterations", "exactly N samples, unless --max-time ends first (default: until --precision is reached)", "N", positive,
           fills="budget.iterations"),
    Option("-w --warmup", "exactly N warm-up calls (default: until times are stable)", "N", natural, fills="budget.warmup"),
    Option("--precision", "target half-width of the 95 %% confidence interval, in percent (default: by size)", "PCT", percent,
           fills="budget.precision"),
    Option("--max-time", f"time limit per case, before all counts (default: {CASE_MAX_TIME_S:g})", "SECONDS", duration,
           fills="budget.max_time_s"),
    Option("--total-time", f"time limit of all cases together, divided among them (default: {BRIEF_S:g} per operation without --full, "
           "sizes, -n, --precision and --max-time, else none)", "SECONDS", duration, fills="budget.total_s"),
    Option("-c --check", "calls per case that verify the data; 0: off (default: 1)", "N", natural, 1, fills="check"),
    Option("--stop-on-wrong", "end the run at the first wrong data and keep the rows measured so far (default: continue, and exit with "
           "code 4)", fills="stop_on_wrong"),
    Option("--ceiling", "expected bus bandwidth (default: from the probed hardware)", "GB/s", rate, fills="ceiling"),
    Option("--oversubscription", "oversubscription of the fabric: it carries the rate of a host divided by X (default: 1)", "X", factor,
           1.0, fills="oversubscription"),
    Option("--seed", "seed of the inputs and of the order of the cases (default: 0, and a random order)", "N", natural, fills="order_seed"),
    Option("--evidence", "record counters and logs that show the path of the bytes; tuning: also the choices of NCCL before 2.27, which "
           "logs a line per call (default: on)", choices=("on", "off", "tuning"), default="on", fills="evidence"),
    Option("--telemetry", "read clocks, power and temperature of the GPUs N times a second (at most 5), for sizes from 1 MiB (default: 1; "
           "0: never)", "N", hertz, 1.0, fills="telemetry_hz"),
    Option("--slowed", "slow cases down on purpose, to test a gate: by=10%%, by=5-15%% or by=10±3%%; select cases by operations=, "
           "backends=, sizes= and ranks by ranks= (default: all); separate several with ';'", "SPEC", default=[],
           more={"action": "append"}),
    # launch and output
    Option("--ranks", "processes to start on this host without a launcher (default: one per GPU, or one per K GPUs of -g; on CPUs at least "
           "2)", "N", positive, fills="ranks"),
    Option("--oversubscribe", "allow more than 16 ranks per core on this host (default: refuse to start)"),
    Option("-g --gpus-per-process", "NCCL: number of GPUs (and ranks) that each process uses, as in nccl-tests (default: 1)", "K", positive,
           1, fills="gpus_per_process"),
    Option("--ranks-per-node", "with one task per node: ranks that each task starts (default: 1; NCCL under srun: one per GPU)", "K",
           positive),
    Option("--launches", "number of launches on this host; intervals are over their medians (default: 1)", "N", positive, 1,
           fills="launches"),
    Option("--gdr-check", "NCCL: compare launches with and without GPUDirect RDMA, interleaved; --launches of each, at least 2"),
    Option("--timeout", f"deadline of each wait for other ranks (default: {DEFAULT_TIMEOUT_S:g})", "SECONDS", duration,
           DEFAULT_TIMEOUT_S, fills="timeout_s"),
    Option("--allocation", "name of the allocation (default: the scheduler's job)", "NAME", fills="allocation"),
    Option("--out", "run folder (default: runs/<time>-<operation>-<id>)", "DIR", Path, fills="out"),
    Option("--html", "also write the result as one HTML page, which needs no network", "FILE", Path),
    Option("--trace", "also write the timeline of the run (cases, phases, samples) as trace events, for Perfetto and chrome://tracing",
           "FILE", Path, fills="trace"),
    Option("--nvtx", "mark cases and their phases with NVTX ranges, for Nsight Systems (extra: nvtx, or cupy)", fills="nvtx"),
    Option("--resume", "continue an incomplete run: measure only the cases that its folder lacks", "RUN", Path, fills="resume"),
    Option("--resume-if-exists", "continue the run in --out DIR if there is one, for jobs that may be requeued", fills="resume_if_exists"),
    Option("--format", **format_settings(*ROW_FORMATS)),
    Option("--color", "colored output (default: auto)", choices=("auto", "always", "never"), default="auto"),
    Option("--quiet", "print results and errors, but no progress and no notes"),
    Option("--columns", "columns of the table, such as size,time,p99; +p95,max adds to the usual ones", "NAMES", _known_columns),
    Option("-v --verbose", "show the flags of each row, and what they mean"),
    # of single commands
    Option("--full", f"measure every size by factor 2, up to {CASE_MAX_TIME_S:g} s per case (default: about 8 sizes in {BRIEF_S:g} s per "
           "operation)"),
    Option("--dry-run", "print the cases and the estimated time, and exit"),
)  # fmt: skip
OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}
Layout = Mapping[str, Sequence[Option]]  # the options of a command by the title of their group; "": without a title


def some(names: str, **changes: Mapping[str, Any]) -> list[Option]:
    """Return options of the table by name, with changes of their fields by name."""
    return [replace(OPTIONS[name], **changes.get(name, {})) for name in names.split()]


def add_some(group: Any, names: str, **changes: Mapping[str, Any]) -> None:
    """Add options of the table to a parser or a group of one; see `some`."""
    for option in some(names, **changes):
        option.add_to(group)


def _in_folder(command: str, names: str) -> list[Option]:
    """Return the launch and output options of a command with records of its own."""
    return some(
        names, out={"help": f"run folder (default: runs/<time>-{command}-<id>)"},
        resume={"help": "continue an incomplete run: measure only what its folder lacks"},
        dry_run={"help": _DRY_RUNS[command]}, format=format_settings("table", "csv"),
    )  # fmt: skip


_RANKS = "ranks oversubscribe gpus_per_process ranks_per_node"
_OUTPUT = "timeout allocation out trace resume resume_if_exists dry_run format color quiet verbose"
_DRY_RUNS = {
    "pairs": "print the rounds, their pairs and the estimated time, and exit",
    "hunt": "print the stages, their most rounds and the estimated time, and exit",
    "replay": "print the exchanges of the step and the number of ranks, and exit",
    "load": "print the victims, the aggressors and the estimated time, and exit",
    "kv": "print the transfers, their blocks and the estimated time, and exit",
    "workload": "print the exchanges of a step, their bytes and the estimated time, and exit",
}
COLLECTIVE: Layout = {
    "what to measure": some("sizes minimum maximum factor increment backend device dtype redop root split pairs skew traffic"),
    "how to measure": some(
        "mode overlap calls buffers in_place out_of_place window streams algorithms protocols registration iterations warmup precision "
        "max_time total_time check stop_on_wrong ceiling oversubscription seed evidence telemetry slowed"
    ),
    "launch and output": some(
        f"{_RANKS} launches gdr_check timeout allocation out trace nvtx resume resume_if_exists format color quiet columns verbose"
    ),
}
# Shared by the commands that measure pairs of ranks or nodes.
_BACKEND = {"metavar": "NAME", "help": "a backend of `collbench backends` (default: the first that is installed)"}
_SAMPLES = some(
    "iterations warmup precision max_time",
    warmup={"help": "exactly N warm-up calls (default: 10 ping-pongs, 1 window)"},
    max_time={"default": _PAIR_MAX_TIME_S, "help": f"time limit per measurement; a round has three (default: {_PAIR_MAX_TIME_S:g})"},
)
_CHECKS = some("check stop_on_wrong", check={"help": "calls per measurement that verify the data; 0: off (default: 1)"})


def _messages(subject: str) -> list[Option]:
    """Return the options for the pairs (the help text begins with `subject`), and for the messages."""
    return [
        Option("--by", f"{subject}; a pair of nodes uses all their ranks at the same time (default: node if there are several, else rank)",
               choices=("rank", "node")),
        Option("--size", "size of the bandwidth messages (default: 1M)", "SIZE", default="1M"),
        Option("--latency-size", "size of the latency messages (default: 8)", "SIZE", default="8"),
        *some("window", window={"default": _PAIR_WINDOW, "help": f"messages in flight (default: {_PAIR_WINDOW})"}),
    ]  # fmt: skip


def tools(which: str) -> Option:
    """Return the option for external tools; `which` describes their use."""
    return Option("--tools", f"external tools (iperf3, fi_pingpong, ucx_perftest, ib_write_bw) {which} (default: none)", "NAME", words)


PAIRS: Layout = {
    "what to measure": [
        *_messages("what to pair"),
        Option("--one-to-all", "only the pairs of this rank, or of its node, one at a time (RANK: 0)", "RANK", natural,
               more={"nargs": "?", "const": 0}),
        Option("--sample", "number of partners of each rank or node; for an odd number some have one more (default: all)", "N", positive),
        *some("backend device", backend=_BACKEND),
        tools("that run between the same pairs as well, as separate rows"),
        *some("streams", streams={"help": "socket: TCP connections per pair of ranks (default: 1)"}),
    ],
    "how to measure": [
        Option("--concurrent", "most pairs at the same time (default: all of a round)", "K", positive),
        *_SAMPLES,
        Option("--budget", "time limit of the whole matrix: if not all pairs fit, measure a sample in which each rank or node has at least "
               f"one partner (default: {_BUDGET_S:g}: all pairs of 400 nodes)", "SECONDS", duration, _BUDGET_S),
        *_CHECKS,
        *some("seed slowed", seed={"help": "seed of the inputs and of the order of rounds (default: 0, random order)"}),
    ],
    "launch and output": _in_folder("pairs", f"{_RANKS} {_OUTPUT}"),
}  # fmt: skip
HUNT: Layout = {
    "what to measure": [*_messages("what is compared"), *some("backend device", backend=_BACKEND)],
    "how to hunt": [
        Option("--method", "rounds of pairs, or O(log N) of collectives over groups that overlap (default: auto, pairs where so many "
               "rounds fit into the budget)", choices=("auto", "pairs", "groups"), default="auto"),
        Option("--rounds", "most rounds of the sweep (default: by the number of endpoints)", "N", positive),
        Option("--budget", f"for all rounds (default: {_BUDGET_S:g})", "SECONDS", duration, _BUDGET_S),
        Option("--cover-links", "choose pairs that cross every link of the fabric; FILE: what ibnetdiscover printed", "FILE", Path),
        Option("--no-isolation", "do not measure confirmed suspects alone (inside, and per interface)"),
        Option("--no-growing", "do not search for faults that only larger groups show"),
    ],
    "how to measure": [
        *_SAMPLES,
        *_CHECKS,
        *some("seed slowed", seed={"help": "seed of the inputs and of the pairs (default: 0)"}),
    ],
    "what to do about it": [
        Option("--apply", "drain the nodes that are confirmed (scontrol update, kubectl cordon), and print how to undo it (default: print "
               "and store the lines only)"),
        Option("--max-drain", "--apply: so many nodes at most are out of use by collbench at a time, else none is drained (default: 2%%, "
               "and one at least)", "N|PCT%", default="2%"),
    ],
    "launch and output": _in_folder("hunt", f"{_RANKS} {_OUTPUT}"),
}  # fmt: skip
CHECK: Layout = {
    "launch and output": some(
        f"backend total_time ceiling {_RANKS} slowed timeout allocation out html format color quiet",
        backend={"help": "nccl, torch-nccl, mpi, gloo … (default: nccl with GPUs, else every installed CPU backend)"},
        total_time={"default": CHECK_TOTAL_S, "help": f"time limit of all cases together, divided among them (default: {CHECK_TOTAL_S:g})"},
        out={"help": "run folder (default: runs/<time>-check-<id>)"},
        format={"metavar": None, "choices": ("table", "json"), "help": "text, or one JSON object (default: table)"},
        quiet={"help": "print only the verdict and errors"},
    )
}


def workload_options() -> Layout:
    """Return the arguments of `collbench workload`, of which some depend on the training."""
    from collbench.plugins.training.workloads.registry import every_regime

    names = Option("names", f"{', '.join(every_regime())}; several separated by commas, or {ALL}", "NAME")
    step_time = "computing time of a step without exchanges, e.g. 180ms; adds the scaling efficiency that the network allows"
    compute = Option(
        "--compute", "computing of a step: none; real: measure each step also with arithmetic that lasts --step-time (default: as long as "
        "its exchanges), for its overlap and scaling efficiency; takes up to --max-time more (default: none)", default="none",
        choices=("none", "real"),
    )  # fmt: skip
    steps = (
        "exactly N steps, unless --max-time ends first; asynchronous training: N rounds of each worker "
        "(default: until --precision is reached)"
    )
    return {
        "what to train": [names, *_of_trainings(), Option("--step-time", step_time, "SECONDS", duration), compute],
        "how to measure": [
            *some(
                "backend device iterations warmup precision max_time",
                backend={"help": "nccl, torch-nccl, mpi, gloo, simulated … (default: nccl with GPUs, else every installed CPU backend)"},
                iterations={"flags": "-n --steps", "help": steps, "dest": "iterations"},
                warmup={"help": "exactly N warm-up steps (default: until times are stable)"},
                max_time={"default": _STEP_MAX_TIME_S, "help": f"time limit of the steps per training and backend; {_NOT_LIMITED}"},
            ),
            Option("--no-parts", _NO_PARTS),
            *some(
                "check stop_on_wrong ceiling oversubscription seed slowed",
                check={"help": _CHECKED_STEPS},
                seed={"help": "seed of the inputs; expert-parallel: also of which expert is the busiest (default: 0)"},
            ),
        ],
        "launch and output": _in_folder("workload", f"{_RANKS} {_OUTPUT}"),
    }


_NO_PARTS = "measure only the whole step; without it each exchange is measured too, in a fifth of the time"
_CHECKED_STEPS = "steps that verify the data; 0: off (default: 1)"
_STEP_OPTIONS = some(
    "backend device iterations warmup precision max_time",
    backend={"help": "nccl, torch-nccl, mpi, gloo, simulated … (default: nccl with GPUs, else every installed CPU backend)"},
    iterations={"flags": "-n --steps", "help": "exactly N steps, unless --max-time ends first (default: until --precision is reached)",
                "dest": "iterations"},
    warmup={"help": "exactly N warm-up steps (default: until times are stable)"},
    max_time={"default": _STEP_MAX_TIME_S, "help": f"time limit of the steps per backend; {_NOT_LIMITED}"},
)  # fmt: skip
REPLAY: Layout = {
    "what to replay": [
        Option("traces", "files of a trace, or folders with them: those of all ranks", "TRACE", Path, more={"nargs": "+"}),
        Option("--step", "number of the step from 0, first, median (by recorded time), or all: the whole trace (default: median, where the "
               "trace has step boundaries or repeats exactly)", "N", step_choice),
        Option("--compute", "computing between and during operations: none; gaps: as recorded, else the gaps between operations; scale=X: "
               "X times gaps (default: none)", "HOW", compute_scale),
        Option("--suite", "write the operations, sizes and groups of the step as a suite for `collbench run`, and exit", "FILE", Path),
    ],
    "how to measure": [
        *_STEP_OPTIONS,
        Option("--no-parts", _NO_PARTS),
        *some("check stop_on_wrong ceiling oversubscription seed slowed", check={"help": _CHECKED_STEPS}),
    ],
    "launch and output": [
        Option("--ranks", "replay on N ranks, which must divide the recorded number: the data-parallel dimension shrinks (default: as "
               "recorded)", "N", positive, fills="ranks"),
        *_in_folder("replay", f"oversubscribe ranks_per_node {_OUTPUT}"),
    ],
}  # fmt: skip
LOAD: Layout = {
    "what to measure": [
        Option("--victim", "operation that is timed (default: allreduce); p2p: p2p_latency", "OPERATION", default="allreduce"),
        Option("--size", "size of the victims' operation (default: 8)", "SIZE", default="8"),
        Option("--against", "patterns of the aggressors: incast, alltoall, broadcast, random-pairs, ring; a row for each, or at the same "
               "time with +: incast+ring (default: incast)", "PATTERNS", words, ["incast"]),
        Option("--message", "size of the aggressors' messages (default: 128K)", "SIZE", default="128K"),
        Option("--levels", "target rates of the aggressors in percent of their full rate; 0: none, a control (default: 100)", "PCT",
               words, ["100"]),
        Option("--ramp", "the levels 0, 25, 50, 75 and 100"),
        Option("--preset", "victim and aggressors of a published test: gpcnet-latency, gpcnet-bandwidth or gpcnet-allreduce", "NAME",
               choices=("gpcnet-latency", "gpcnet-bandwidth", "gpcnet-allreduce")),
        *some("split", split={"help": "the first group are victims, the others aggressors: 'MOD 2' with two ranks per node (default: by "
                              "node)", "needs": None}),
        Option("--aggressors", "number of nodes with aggressors (default: half of them)", "N", positive),
        *some("backend device", backend=_BACKEND),
    ],
    "how to measure": [
        Option("--blocks", "pairs of blocks, with aggressors off and on, of each row (default: 8)", "N", positive, 8),
        *some("max_time check stop_on_wrong seed", max_time={"default": _LOAD_MAX_TIME_S, "help": "time limit of all samples of a row "
              f"(default: {_LOAD_MAX_TIME_S:g})"}, check={"help": "calls of each operation that verify the data; 0: off (default: 1)"},
              seed={"help": "seed of the inputs, of the order of the blocks and of the random pairs (default: 0, random order)"}),
        *some("slowed"),
    ],
    "launch and output": _in_folder("load", f"ranks oversubscribe ranks_per_node {_OUTPUT}"),
}  # fmt: skip
KV: Layout = {
    "what to move": [
        Option("--model", "send the key-value cache of a model: llama-3.1-8b, llama-3.1-70b or mistral-7b (default: plain blocks)", "NAME"),
        Option("--tokens", "with --model: tokens of the request (default: 512)", "N", positive),
        Option("--block-size", "with --model: tokens of a block (default: 16)", "N", positive),
        Option("--cache-dtype", "with --model: type of the cache (default: bf16)", choices=("bf16", "fp16", "fp8")),
        Option("--layout", "with --model: memory of the cache. layer-first: a pool of blocks per layer; block-first: all layers of a "
               "block are adjacent (default: layer-first)", choices=("layer-first", "block-first")),
        Option("--blocks", "without --model: blocks per pair of ranks, or several numbers (default: 8,64,512)", "N", words),
        Option("--block-bytes", "without --model: bytes of a block, or several (default: 4K,32K)", "SIZES", words),
        Option("--pattern", "prefill-decode: pairs of ranks; broadcast: rank 0 sends the same blocks to all others (default: "
               "prefill-decode)",
               choices=("prefill-decode", "broadcast"), default="prefill-decode"),
        Option("--tp", "ranks that send and ranks that receive: 4:2 joins the heads of 4 ranks on 2 (default: half of the "
               "ranks each)", "M:N"),
        Option("--prefill-time", "your time of prefill: adds the share of the transfer in the time to first token", "SECONDS", duration),
        Option("--method", "mpi-messages, mpi-type, mpi-put, mpi-put-type, packed, writev, nixl (default: all)", "NAMES", words),
    ],
    "how to measure": some(
        "max_time iterations warmup precision check stop_on_wrong seed",
        max_time={"default": _KV_MAX_TIME_S, "help": f"time limit of the samples of a row (default: {_KV_MAX_TIME_S:g})"},
        check={"help": "transfers per row of which every byte is compared; 0: off (default: 1)"},
        seed={"help": "seed of the contents, of the places of the blocks and of the order of the rows (default: 0, random order)"},
    ),
    "launch and output": _in_folder("kv", f"ranks oversubscribe ranks_per_node {_OUTPUT}"),
}  # fmt: skip
_METAVARS = {
    "model": "MODEL", "dtype": "TYPE", "bucket": "SIZE", "update": "HOW", "imbalance": "X", "routing": "ROUTING",
    "dispatch_dtype": "TYPE", "combine_dtype": "TYPE",
}  # fmt: skip


def _of_trainings() -> list[Option]:
    """Return the options of all trainings, with their default by training where they differ. Every command has --seed already."""
    from collbench.plugins.training.workloads.shape import DEFAULTS, help_of, words

    found = []
    for name, owners in options_of_trainings().items():
        if name == "seed":
            continue
        values: dict[str, list[str]] = {}
        for regime in owners:
            values.setdefault(words(regime)[name], []).append(regime.name)
        of_each = ", ".join(f"{value} for {' and '.join(names)}" for value, names in values.items())
        default = next(iter(values)) if len(values) == 1 else of_each
        only_for = "" if name in DEFAULTS else f"; only {', '.join(regime.name for regime in owners)}"
        text = f"{help_of(owners[0])[name]}{f' (default: {default})' if default else ''}{only_for}".replace("%", "%%")
        flags = f"{'-d ' if name == 'dtype' else ''}{long_option(name)}"
        found.append(Option(flags, text, _METAVARS.get(name, "N")))
    return found


def options_of_trainings() -> dict[str, list[Regime]]:
    """Return by option the trainings that have it."""
    from collbench.plugins.training.workloads.registry import every_regime
    from collbench.plugins.training.workloads.shape import words

    found: dict[str, list[Regime]] = {}
    for regime in every_regime().values():
        for name in words(regime):
            found.setdefault(name, []).append(regime)
    return found


def long_option(name: str) -> str:
    """Return the long spelling of an option: "--max-time" for max_time."""
    return f"--{name.replace('_', '-')}"


def add_options(parser: Parser, layout: Layout, operations: Sequence[Operation] = ()) -> None:
    """Add the options of a layout. Those that none of a command's operations has are not added; their values are the defaults."""
    parser.set_defaults(gdr_check=False, resume=None)  # what the start of every command asks for
    for title, options in layout.items():
        group = parser.add_argument_group(title) if title else parser
        rivals: dict[str, Any] = {}
        for option in options:
            if operations and option.needs and not any(map(option.needs, operations)):
                parser.set_defaults(**{option.name: ["uint8"] if option.name == "dtype" else option.default})
                continue
            if option.rivals and option.rivals not in rivals:
                rivals[option.rivals] = group.add_mutually_exclusive_group()
            option.add_to(rivals.get(option.rivals, group))
