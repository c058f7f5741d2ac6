"""The options of the measuring commands: declared once, as fields of typed options, and which of them each command has."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import replace

from collbench.cli.parser import Parser, duration, format_settings, hertz, natural, pair_numbers, percent, positive, rate, words
from collbench.cli.parser import factor as fabric_factor
from collbench.cli.parser import skew as skewed_share
from collbench.cli.parser import streams as connections
from collbench.operations.operation import Operation
from collbench.operations.sweep import ALGORITHMS, MODES, PROTOCOLS, REGISTRATIONS
from collbench.report import FORMATS

if TYPE_CHECKING:
    from collbench.report.progress import Output

DEFAULT_TIMEOUT_S = 120.0
CASE_MAX_TIME_S = 5.0
BRIEF_S = 8.0  # of samples for each operation of a command without options; with start-up and references it answers within 15 s
BRIEF_OVERHEAD_S = 7.0  # of the whole command, in addition to these samples
CHECK_TOTAL_S = 8.0
CHECK_OVERHEAD_S = 10.0  # doctor and the verdict follow
STEP_MAX_TIME_S = 10.0
NOT_LIMITED = f"setting up and verifying take some steps more (default: {STEP_MAX_TIME_S:g})"
ROW_FORMATS = tuple(name for name in FORMATS if name != "json")  # for people: json has the name jsonl


class Option(msgspec.Struct, frozen=True):
    """An option of measuring commands.

    flags     its spellings, the long one last
    help, metavar, parse, default, choices   as in argparse; without metavar and choices it is a switch
    fills     the field of Request, of its budget ("budget.warmup") or of its settings ("settings.NAME") that its value is; "": the
              function of the request makes more of it
    needs     an operation -> whether it has the option; None: it does not depend on operations
    rivals    options with the same word here exclude each other
    more      other settings of argparse
    rare      whether only --help-all shows it, since few users need it
    name      of its value: that of the field that declares it
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
    more: dict[str, Any] = msgspec.field(default_factory=dict)
    rare: bool = False
    name: str = ""

    @property
    def is_switch(self) -> bool:
        """Return whether it has no value."""
        return self.metavar is None and self.choices is None

    def add_to(self, group: Any) -> None:
        """Add it to a parser or a group of one."""
        settings: dict[str, Any] = {"metavar": self.metavar, "type": self.parse, "choices": self.choices, "default": self.default}
        if self.is_switch:
            settings = {"action": "store_true"}
        if self.name and self.flags.startswith("-"):
            settings["dest"] = self.name
        group.add_argument(*self.flags.split(), help=self.help, **(settings | self.more))


def option(flags: str, help: str, *settings: Any, **more: Any) -> Any:
    """Declare a field of `MeasuringOptions` as an option; see `Option` for the settings."""
    return declare(Option(flags, help, *settings, **more))


def declare(declared: Option) -> Any:
    """Declare a field of `MeasuringOptions` as this option."""
    default = False if declared.default is None and declared.is_switch else declared.default
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"option": declared})
    return field(default=default, metadata={"option": declared})


def moves(operation: Operation) -> bool:
    """Return whether an operation moves data: a barrier has no sizes, data types and buffers."""
    return not operation.is_barrier


def _collective(operation: Operation) -> bool:
    return not operation.pair


def _known_columns(names: str) -> str:
    """Return names of columns, before any rank starts. Raises UsageError for an unknown one."""
    from collbench.report.blocks import check_columns, parse_columns

    check_columns(parse_columns(names)[0])
    return names


_DEVICE = "memory of the buffers (default: auto: cuda for nccl and torch-nccl, cpu for the others)"


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions:
    """The values of a measuring command's options. Those that the command does not have are at their defaults.

    command        its name
    configuration  the configuration file and its values in use, for run.json; None: none
    npmin          IMB's -npmin; None without it
    """

    command: str = ""
    configuration: Mapping[str, Any] | None = None
    npmin: int | None = None
    # fmt: off
    sizes: str | None = option("--sizes", "1K-1G, 1K-1G:x4, 1K-64K:+1K or 8,1K,1M; K = 1024 (default: 8 sizes from 8 to 64M, on NCCL 9 to "
        "1G)", "SIZES", needs=moves)
    minimum: str | None = option("-b", "smallest size, as in nccl-tests", "MIN", needs=moves, rare=True)
    maximum: str | None = option("-e", "largest size", "MAX", needs=moves, rare=True)
    factor: str | None = option("-f", "factor between sizes (default: 2)", "FACTOR", needs=moves, rivals="step", rare=True)
    increment: str | None = option("-i", "increment between sizes", "STEP", needs=moves, rivals="step", rare=True)
    backend: list[str] | None = option("--backend", "nccl, torch-nccl, mpi, gloo, socket (p2p), simulated … (default: nccl with GPUs, else "
        "every installed CPU backend)", "NAMES", words)
    device: str = option("--device", _DEVICE, choices=("auto", "cpu", "cuda"), default="auto", rare=True)
    dtype: list[str] = option("-d --dtype", "float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int32, int64, uint8, "
        "uint32, uint64 (default: float32)", "TYPES", words, ["float32"], needs=moves)
    redop: list[str] = option("-o --redop", "sum, prod, min, max, avg, band, bor, bxor (default: sum)", "OPS", words, ["sum"],
        needs=lambda it: it.reduces)
    root: list[str] = option("-r --root", "root rank, or several (default: 0)", "RANKS", words, ["0"], needs=lambda it: it.rooted)
    split: str | None = option("--split", "groups of ranks that run at the same time, as in nccl-tests: 'MOD 8' (rank modulo 8), 'DIV 8', "
        "'AND 0x7' or 'OR 0x7' (default: one group of all)", "SPLIT", needs=_collective, rare=True)
    skew: float | None = option("--skew", "rank 0's part is X times the average (default: 1: equal parts)", "X", skewed_share,
        needs=lambda it: it.uneven, rivals="traffic", rare=True)
    traffic: Path | None = option("--traffic", "bytes of each rank (alltoallv: each pair of ranks) as CSV; scaled to --sizes if set",
        "FILE", Path, needs=lambda it: it.uneven, rivals="traffic", rare=True)
    mode: str | None = option("--mode", "isolated: synchronize before each call; pipelined: back to back; batched: synchronize before each "
        "20 calls; graph: a CUDA graph; overlap: as --overlap (default: isolated on CPUs, pipelined on NCCL)", choices=MODES, rivals="mode")
    overlap: bool = option("--overlap", "measure how much of each operation a computation of the same length hides: both alone, together, "
        "and with test calls of MPI, interleaved (backends that can start an operation: mpi, gloo, nccl)", rivals="mode", rare=True)
    buffers: str | None = option("--buffers", "fixed: the same buffers for each call; rotating: 64 MiB of buffers in turn, on GPUs 256 MiB "
        "(default: fixed on CPUs, rotating on NCCL)", choices=("fixed", "rotating"), needs=moves, rare=True)
    in_place: bool = option("--in-place", "use one buffer to send and to receive", needs=moves, rivals="place", rare=True)
    out_of_place: bool = option("--out-of-place", "use two buffers (default, if the library supports it)", needs=moves,
        rivals="place", rare=True)
    window: int | None = option("--window", "messages in flight (default: 64, at most 256 MiB in all)", "W", positive,
        needs=lambda it: it.windowed, rare=True)
    pairs: tuple[int, ...] = option("--pairs", "numbers of pairs that send at the same time, rank i to rank i + N/2: 1,2,4 or all "
        "(default: all)", "NUMBERS", pair_numbers, (), needs=lambda it: it.aggregate)
    streams: int | None = option("--streams", "socket: TCP connections between two ranks, which share each message (default: 1)", "K",
        connections, needs=lambda it: it.pair and not it.one_sided, rare=True)
    algorithms: list[str] = option("--algorithms", f"NCCL: algorithms to force, besides NCCL's own choice: {', '.join(ALGORITHMS)}",
        "NAMES", words, [], needs=_collective, rare=True)
    protocols: list[str] = option("--protocols", f"NCCL: protocols to force, with each algorithm: {', '.join(PROTOCOLS)}", "NAMES", words,
        [], needs=_collective, rare=True)
    registration: list[str] = option("--registration", f"NCCL: registration of the buffers: {', '.join(REGISTRATIONS)}, or several "
        "(default: none)", "WORDS", words, [], rare=True)
    calls: list[str] = option("--calls", "blocking; nonblocking: start, then wait (MPI_Iallreduce, async_op); persistent: start a request "
        "that is made once (MPI_Allreduce_init), or several (default: blocking)", "FORMS", words, ["blocking"], rare=True)
    iterations: int | None = option("-n --iterations", "exactly N samples, unless --max-time ends first (default: until --precision is "
        "reached)", "N", positive, fills="budget.iterations")
    warmup: int | None = option("-w --warmup", "exactly N warm-up calls (default: until times are stable)", "N", natural,
        fills="budget.warmup", rare=True)
    precision: float | None = option("--precision", "target half-width of the 95 %% confidence interval, in percent (default: by size)",
        "PCT", percent, fills="budget.precision", rare=True)
    max_time: float | None = option("--max-time", f"time limit per case, before all counts (default: {CASE_MAX_TIME_S:g})", "SECONDS",
        duration, fills="budget.max_time_s")
    total_time: float | None = option("--total-time", f"time limit of all cases together, divided among them (default: {BRIEF_S:g} per "
        f"operation without --full, sizes, -n, --precision and --max-time, else none)", "SECONDS", duration, fills="budget.total_s")
    check: int = option("-c --check", "calls per case that verify the data; 0: off (default: 1)", "N", natural, 1, fills="check")
    stop_on_wrong: bool = option("--stop-on-wrong", "end the run at the first wrong data and keep the rows measured so far (default: "
        "continue, and exit with code 4)", fills="stop_on_wrong", rare=True)
    ceiling: float | None = option("--ceiling", "expected bus bandwidth (default: from the probed hardware)", "GB/s", rate,
        fills="ceiling", rare=True)
    oversubscription: float = option("--oversubscription", "oversubscription of the fabric: it carries the rate of a host divided by X "
        "(default: 1)", "X", fabric_factor, 1.0, fills="oversubscription", rare=True)
    seed: int | None = option("--seed", "seed of the inputs and of the order of the cases (default: 0, and a random order)", "N", natural,
        fills="order_seed", rare=True)
    evidence: str = option("--evidence", "record counters and logs that show the path of the bytes; tuning: also the choices of NCCL "
        "before 2.27, which logs a line per call (default: on)", choices=("on", "off", "tuning"), default="on", fills="evidence", rare=True)
    telemetry: float = option("--telemetry", "read clocks, power and temperature of the GPUs N times a second (at most 5), for sizes from "
        "1 MiB (default: 1; 0: never)", "N", hertz, 0.0, fills="telemetry_hz", rare=True)
    slowed: list[str] = option("--slowed", "slow cases down on purpose, to test a gate: by=10%%, by=5-15%% or by=10±3%%; select cases by "
        "operations=, backends=, sizes= and ranks by ranks= (default: all); separate several with ';'", "SPEC", default=[],
        more={"action": "append"}, rare=True)
    ranks: int | None = option("--ranks", "processes to start on this host without a launcher (default: one per GPU, or one per K GPUs of "
        "-g; on CPUs at least 2)", "N", positive, fills="ranks")
    oversubscribe: bool = option("--oversubscribe", "allow more than 16 ranks per core on this host (default: refuse to start)",
        fills="oversubscribe", rare=True)
    gpus_per_process: int = option("-g --gpus-per-process", "NCCL: number of GPUs (and ranks) that each process uses, as in nccl-tests "
        "(default: 1)", "K", positive, 1, fills="gpus_per_process")
    ranks_per_node: int | None = option("--ranks-per-node", "with one task per node: ranks that each task starts (default: 1; NCCL under "
        "srun: one per GPU)", "K", positive, fills="ranks_per_node", rare=True)
    launches: int = option("--launches", "number of launches on this host; intervals are over their medians (default: 1)", "N", positive, 1,
        fills="launches")
    gdr_check: bool = option("--gdr-check", "NCCL: compare launches with and without GPUDirect RDMA, interleaved; --launches of each, at "
        "least 2", fills="gdr_check", rare=True)
    timeout: float = option("--timeout", f"deadline of each wait for other ranks (default: {DEFAULT_TIMEOUT_S:g})", "SECONDS", duration,
        DEFAULT_TIMEOUT_S, fills="timeout_s", rare=True)
    allocation: str | None = option("--allocation", "name of the allocation (default: the scheduler's job)", "NAME",
        fills="allocation", rare=True)
    out: Path | None = option("--out", "run folder (default: runs/<time>-<operation>-<id>)", "DIR", Path, fills="out")
    html: Path | None = option("--html", "also write the result as one HTML page, which needs no network", "FILE", Path)
    trace: Path | None = option("--trace", "also write the timeline of the run (cases, phases, samples) as trace events, for Perfetto and "
        "chrome://tracing", "FILE", Path, fills="trace", rare=True)
    nvtx: bool = option("--nvtx", "mark cases and their phases with NVTX ranges, for Nsight Systems (extra: nvtx, or cupy)",
        fills="nvtx", rare=True)
    resume: Path | None = option("--resume", "continue an incomplete run: measure only the cases that its folder lacks", "RUN", Path,
        fills="resume", rare=True)
    resume_if_exists: bool = option("--resume-if-exists", "continue the run in --out DIR if there is one, for jobs that may be requeued",
        fills="resume_if_exists", rare=True)
    format: str = option("--format", **format_settings(*ROW_FORMATS))
    color: str = option("--color", "colored output (default: auto)", choices=("auto", "always", "never"), default="auto", rare=True)
    quiet: bool = option("--quiet", "print results and errors, but no progress and no notes", rare=True)
    columns: str | None = option("--columns", "columns of the table, such as size,time,p99; +p95,max adds to the usual ones", "NAMES",
        _known_columns)
    verbose: bool = option("-v --verbose", "show the flags of each row, and what they mean")
    full: bool = option("--full", f"measure every size by factor 2, up to {CASE_MAX_TIME_S:g} s per case (default: about 8 sizes in "
        f"{BRIEF_S:g} s per operation)")
    dry_run: bool = option("--dry-run", "print the cases and the estimated time, and exit")
    # fmt: on

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Self:
        """Return the values of a parsed command line."""
        values = vars(arguments)
        return cls(**{declared.name: values[declared.name] for declared in fields(cls) if declared.name in values})

    @property
    def shows_plan(self) -> bool:
        """Return whether the plan is shown, and nothing is measured."""
        return self.dry_run

    @property
    def output(self) -> Output:
        """Return how results and progress are printed."""
        from collbench.report.blocks import View
        from collbench.report.progress import Output

        return Output(self.format, self.color, self.quiet, View.of(self.columns, self.verbose, self.quiet))


@dataclass(frozen=True, kw_only=True)
class OperationOptions(MeasuringOptions):
    """The options of the commands of operations, and of `run`. The choices of --only are the operations of the command."""

    only: str | None = option("--only", "measure only this one (default: all of them)", choices=())
    suite: str = option("suite", "quick, full, gate, or a TOML file", "SUITE", default="")


def declared_options(kind: type[MeasuringOptions]) -> dict[str, Option]:
    """Return by name the options that a class declares, with those of its bases."""
    options = {}
    for declared in fields(kind):
        if "option" in declared.metadata:
            options[declared.name] = replace(declared.metadata["option"], name=declared.name)
    return options


OPTIONS: Mapping[str, Option] = declared_options(MeasuringOptions)
Layout = Mapping[str, Sequence[Option]]  # the options of a command by the title of their group; "": without a title


def some(names: str, kind: type[MeasuringOptions] = MeasuringOptions, /, **changes: Mapping[str, Any]) -> list[Option]:
    """Return options of a class by name, with changes of their fields by name."""
    declared = declared_options(kind)
    return [replace(declared[name], **changes.get(name, {})) for name in names.split()]


def add_some(group: Any, names: str, **changes: Mapping[str, Any]) -> None:
    """Add options of all commands to a parser or a group of one; see `some`."""
    for option in some(names, **changes):
        option.add_to(group)


def in_folder(command: str, dry_run: str, names: str = "") -> list[Option]:
    """Return the launch and output options of a command with records of its own; `dry_run`: what --dry-run prints."""
    return some(
        names or f"{RANKS} {OUTPUT}", out={"help": f"run folder (default: runs/<time>-{command}-<id>)"},
        resume={"help": "continue an incomplete run: measure only what its folder lacks"},
        dry_run={"help": f"print {dry_run}, and exit"}, format=format_settings("table", "csv"),
    )  # fmt: skip


RANKS = "ranks oversubscribe gpus_per_process ranks_per_node"
OUTPUT = "timeout allocation out trace resume resume_if_exists dry_run format color quiet verbose"
COLLECTIVE: Layout = {
    "what to measure": some("sizes minimum maximum factor increment backend device dtype redop root split pairs skew traffic"),
    "how to measure": some(
        "mode overlap calls buffers in_place out_of_place window streams algorithms protocols registration iterations warmup precision "
        "max_time total_time check stop_on_wrong ceiling oversubscription seed evidence telemetry slowed",
        telemetry={"default": 1.0},
    ),
    "launch and output": some(
        f"{RANKS} launches gdr_check timeout allocation out trace nvtx resume resume_if_exists format color quiet columns verbose"
    ),
}
# Shared by the commands that measure pairs of ranks or nodes.
ONE_BACKEND = {"metavar": "NAME", "help": "a backend of `collbench backends` (default: the first that is installed)"}


CHECK: Layout = {
    "launch and output": some(
        f"backend total_time ceiling {RANKS} slowed timeout allocation out html format color quiet",
        backend={"help": "nccl, torch-nccl, mpi, gloo … (default: nccl with GPUs, else every installed CPU backend)"},
        total_time={"default": CHECK_TOTAL_S, "help": f"time limit of all cases together, divided among them (default: {CHECK_TOTAL_S:g})"},
        out={"help": "run folder (default: runs/<time>-check-<id>)"},
        format={"metavar": None, "choices": ("table", "json"), "help": "text, or one JSON object (default: table)"},
        quiet={"help": "print only the verdict and errors"},
    )
}


def long_option(name: str) -> str:
    """Return the long spelling of an option: "--max-time" for max_time."""
    return f"--{name.replace('_', '-')}"


def add_options(parser: Parser, layout: Layout, operations: Sequence[Operation] = ()) -> None:
    """Add the options of a layout. Those that none of a command's operations has are not added; their values are the defaults."""
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
