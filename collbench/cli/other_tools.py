"""Names of other benchmarks, and options of nccl-tests and mpirun: translated into collbench's, or rejected with the equivalent."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from collbench.errors import UsageError
from collbench.operations.registry import commands as operation_commands
from collbench.units import parse_duration

# Commands: nccl-tests' all_reduce_perf, OSU's osu_allreduce, and other spellings such as all-reduce.

_COMMANDS = {
    "bcast": "broadcast", "acc": "accumulate", "acclatency": "accumulate", "putlatency": "put", "putbw": "put", "getlatency": "get",
    "getbw": "get", "latency": "p2p --only latency", "bandwidth": "p2p --only bandwidth", "bw": "p2p --only bandwidth",
    "bibw": "p2p --only bidirectional", "pingpong": "p2p --only latency", "pt2pt": "p2p",
    "mbwmr": "multipair --only bandwidth", "uniband": "multipair --only bandwidth", "biband": "multipair --only bidirectional",
}  # fmt: skip


def command_named(word: str, commands: Collection[str]) -> list[str]:
    """Return the command, with options, that a word means: itself, or the one for another tool's name; an unknown word unchanged.

    OSU's names of call forms are options here: "iallreduce" is `allreduce --calls nonblocking`, "allreduce_persistent" is
    `allreduce --calls persistent`.
    """
    if word in commands:
        return [word]
    name = word.lower().removeprefix("osu_")
    if name.endswith("_persistent"):
        return _with_call_form(word, name.removesuffix("_persistent"), "persistent", commands)
    if name.startswith("i"):
        return _with_call_form(word, name.removeprefix("i"), "nonblocking", commands)
    short = name.removesuffix("_mpi").removesuffix("_perf").replace("-", "").replace("_", "")
    by_letters = {name.replace("-", ""): name for name in commands}
    name, *options = _COMMANDS.get(short, short).split() or [short]
    return [by_letters[name], *options] if name in by_letters else [word]


def _with_call_form(word: str, operation: str, form: str, commands: Collection[str]) -> list[str]:
    command = command_named(operation, commands)
    return [*command, "--calls", form] if command[0] in operation_commands() else [word]


# Other spellings of options that mean the same: nccl-tests' long names, and mpirun's -np.

_SPELLINGS = {
    "-np": "--ranks", "--np": "--ranks", "--minbytes": "-b", "--maxbytes": "-e", "--stepbytes": "-i", "--stepfactor": "-f",
    "--iters": "--iterations", "--warmup_iters": "--warmup", "--op": "--redop", "--datatype": "--dtype", "--ngpus": "--gpus-per-process",
}  # fmt: skip


def respelled(typed: Sequence[str]) -> list[str]:
    """Return arguments with collbench's spelling of options; arguments after a bare -- too, since they are a collbench command."""
    parts = [word.partition("=") for word in typed]
    return [f"{_SPELLINGS.get(option, option)}{equals}{value}" for option, equals, value in parts]


# Options of nccl-tests 2.19 without a collbench option of that name. Their meaning: https://github.com/NVIDIA/nccl-tests#arguments


class OtherOption(msgspec.Struct, frozen=True):
    """An option of nccl-tests or IMB.

    names     its short and long name
    settings  the collbench options equivalent to a value, by name; None: collbench has no equivalent for this value
    reason    why a value is rejected, and what to use
    sets      the name of the option that it sets; "": none
    """

    names: tuple[str, str]
    settings: Callable[[str], Mapping[str, Any] | None]
    reason: str
    sets: str = ""


def _only(*accepted: str) -> Callable[[str], Mapping[str, Any] | None]:
    return lambda value: {} if value in accepted else None


def _graph(value: str) -> Mapping[str, Any] | None:
    if not (value.isascii() and value.isdecimal()):
        return None
    return {"mode": "graph"} if int(value) else {}


def _registration(value: str) -> Mapping[str, Any] | None:
    names = {"0": "none", "1": "registered", "2": "symmetric"}
    return {"registration": [names[value]]} if value in names else None


def _timeout(value: str) -> Mapping[str, Any] | None:
    try:
        return {} if value == "0" else {"timeout": parse_duration(value)}
    except UsageError:
        return None


OPTIONS = (
    OtherOption(("-t", "--nthreads"), _only("1"), "each process has one thread: use `-g K` for K GPUs per process"),
    OtherOption(("-m", "--agg_iters"), _only("1"),
                "operations are not aggregated: use `--mode pipelined` for calls back to back (sizes of OSU's -m: `--sizes 8-1M`)"),
    OtherOption(("-N", "--run_cycles"), _only("1"), "use `--launches N`: each launch starts the ranks anew"),
    OtherOption(("-a", "--average"), _only("3"), "the time is always that of the slowest rank, as with -a 3: remove the option"),
    OtherOption(("-I", "--per_iter_timing"), _only("0", "1"), "every iteration is always timed: remove the option"),
    OtherOption(("-K", "--per_iter_skip"), _only("0"), "use `-w N` for N warm-up calls, which are not timed"),
    OtherOption(("-p", "--parallel_init"), _only("0", "1"), "each process has one thread, which initializes NCCL: remove the option"),
    OtherOption(("-z", "--blocking"), {"0": {}, "3": {"mode": "isolated"}}.get,
                "use `--mode isolated` (synchronize before each call, as -z 3), or `--mode pipelined` (back to back, as -z 0)", "mode"),
    OtherOption(("-y", "--stream_null"), _only("0"), "the null stream is not supported: remove the option"),
    OtherOption(("-G", "--cudagraph"), _graph, "not a number of graph launches: use `--mode graph`", "mode"),
    OtherOption(("-C", "--report_cputime"), _only("0"), "CPU time is not reported: remove the option"),
    OtherOption(("-R", "--local_register"), _registration, "use `--registration none`, `registered` or `symmetric`", "registration"),
    OtherOption(("-x", "--cta_policy"), _only(),
                "set NCCL_CTA_POLICY in the environment instead (warm-up calls of OSU's -x: `-w N`)"),
    OtherOption(("-D", "--device_implementation"), _only("0"), "kernels of NCCL's device API are not supported: remove the option"),
    OtherOption(("-V", "--device_cta_count"), _only(),
                "kernels of NCCL's device API are not supported: remove the option (`collbench -V` prints the version)"),
    OtherOption(("-S", "--report_timestamps"), _only("0"), "rows have no time of day: run.json has the time of the run"),
    OtherOption(("-J", "--output_file"), _only(), "use `--format jsonl > FILE`; the run folder always has all results as JSON"),
    OtherOption(("-T", "--timeout"), _timeout, "not a valid time: use `--timeout 60`", "timeout"),
    OtherOption(("-M", "--memory"), _only("0"), "memory usage is not reported: remove the option"),
    OtherOption(("-u", "--unalign"), _only("0"), "buffers are always aligned: remove the option"),
)  # fmt: skip


class _Translate(argparse.Action):
    """Set the collbench options equivalent to an option of nccl-tests."""

    def __init__(self, option_strings: Sequence[str], dest: str, option: OtherOption, **settings: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **settings)
        self.option = option

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Set them. Raises UsageError for a value without an equivalent."""
        settings = self.option.settings(str(values))
        if settings is None:
            raise UsageError(f"{option_string} {values}: {self.option.reason}")
        for name, value in settings.items():
            setattr(namespace, name, value)


# IMB's -npmin; the plug-in mpibench writes it with two dashes.
LEAST_PROCESSES = OtherOption(
    ("--npmin", "--npmin"), lambda value: {"npmin": int(value)} if value.isascii() and value.isdecimal() and int(value) else None,
    "not a valid number of processes: use e.g. `-npmin 4`", "npmin",
)  # fmt: skip


def check_least_processes(least: int | None, ranks: int) -> None:
    """Raise UsageError if IMB would measure fewer ranks, too: it starts with `least`, and doubles their number."""
    if least is not None and least < ranks:
        raise UsageError(
            f"-npmin {least}: all {ranks} ranks are measured at once: use -npmin {ranks}, and start {least} ranks for the others"
        )


def add_other_options(parser: argparse.ArgumentParser) -> None:
    """Add options of nccl-tests and IMB that collbench does not have itself, hidden from help."""
    for option in (*OPTIONS, LEAST_PROCESSES):
        names = [name for name in dict.fromkeys(option.names) if name not in parser._option_string_actions]
        dest = option.sets or f"nccl_tests{option.names[0]}"
        parser.add_argument(*names, action=_Translate, dest=dest, option=option)


def is_translated(action: argparse.Action) -> bool:
    """Return whether an argument of a parser is another tool's option, without an own environment variable."""
    return isinstance(action, _Translate)
