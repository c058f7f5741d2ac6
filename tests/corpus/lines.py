"""The command lines of the corpus: each command that reads, on every stored run, capture and odd input, in every format."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """A command line, and the files or folders that it writes, whose contents belong to its output."""

    argv: tuple[str, ...]
    written: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the line as it is typed, without the program."""
        return shlex.join(self.argv)


def line(text: str, *written: str) -> Line:
    """Return the line of this text, in a shell's notation."""
    return Line(tuple(shlex.split(text)), written)


def lines(folder: Path) -> list[Line]:
    """Return all lines, in the order in which they run; `folder`: where `inputs.lay_out` has written."""
    runs = sorted(str(path.parent.relative_to(folder)) for path in (folder / "reports").rglob("run.json"))
    single = [run for run in runs if "/launch-" not in run]
    return [
        *_reports(runs, single),
        *_comparisons(),
        *_gates(),
        *_machines(sorted(path.name for path in (folder / "machines").iterdir())),
        *_tools(sorted(path.name for path in (folder / "tools").iterdir())),
        *_odd(sorted(path.name for path in (folder / "odd").iterdir())),
        *_stores(single),
        *_others(),
        *_plans(),
    ]


# Runs that are stored without samples.bin, which tables, pages, metrics and traces of a run need.
_WITHOUT_SAMPLES = (
    "check",
    "cpu-sweep",
    "first-run",
    "kv",
    "link-",
    "load",
    "one-launch",
    "shaped-",
    "stacks",
    "sweep-default",
    "two-hosts",
)


def _has_its_samples(run: str) -> bool:
    return not run.startswith(tuple(f"reports/{name}" for name in _WITHOUT_SAMPLES))


def _reports(runs: list[str], single: list[str]) -> Iterator[Line]:
    for run in runs:
        if _has_its_samples(run):
            yield line(f"report {run}")
        yield line(f"report {run} --csv")
        yield line(f"report {run} --format jsonl")
    for run in single:
        yield line(f"report {run} --markdown")
        yield line(f"report {run} --format nccl-tests")
        yield line(f"report {run} --format bmf")
        if _has_its_samples(run):
            yield line(f"report {run} --openmetrics out.prom", "out.prom")
            yield line(f"report {run} --html out.html", "out.html")
            yield line(f"report {run} --trace out.json", "out.json")
    for several in ("reports/regression/before", "reports/regression/after"):
        yield line(f"report {several}")
        yield line(f"report {several} --csv")
        yield line(f"report {several} --markdown")
        yield line(f"report {several} --html out.html", "out.html")
    yield line("report reports/stacks/gloo --csv")
    yield line("report reports/stacks/mpich --csv")
    for form in ("table", "csv", "json"):
        yield line(f"runs reports --format {form}")


def _comparisons() -> Iterator[Line]:
    pairs = [
        ("reports/regression/before", "reports/regression/after"),
        ("reports/regression/before/launch-1", "reports/regression/after/launch-1"),
        ("reports/stacks/mpich", "reports/stacks/openmpi"),
        ("reports/link-1gbit/p2p", "reports/link-100mbit/p2p"),
        ("reports/shaped-1gbit-pmi2", "reports/shaped-1gbit-pmix"),
        ("reports/stacks/ucc", "reports/stacks/ucc-tcp"),
        ("reports/pairs-trials/host-0", "reports/pairs-trials/pair-0"),
    ]
    for before, after in pairs:
        for form in ("table", "csv", "jsonl", "markdown"):
            yield line(f"compare {before} {after} --format {form}")


def _gates() -> Iterator[Line]:
    yield line("baseline add base reports/regression/before", "base")
    yield line("baseline show base")
    yield line("baseline diff base before after")
    for form in ("table", "json", "github"):
        yield line(f"gate --baseline base reports/regression/after --format {form}")
    yield line(
        "gate --baseline base reports/regression/after --junit out.xml --markdown out.md --html out.html --openmetrics out.prom",
        "out.xml", "out.md", "out.html", "out.prom",
    )  # fmt: skip
    yield line("gate --baseline base reports/regression/before/launch-5")
    yield line("gate --baseline base reports/two-hosts")
    yield line("history base")
    yield line("history base --format jsonl")
    yield line("history base --html out.html", "out.html")
    yield line("history reports/stacks")
    yield line("baseline drop base before", "base")


_OPERATIONS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv", "p2p", "gather", "hypercube")


def _machines(names: list[str]) -> Iterator[Line]:
    for name in names:
        for form in ("table", "matrix", "json"):
            yield line(f"probe --from machines/{name} --format {form}")
        for form in ("table", "json"):
            yield line(f"doctor --from machines/{name} --format {form}")
        for form in ("text", "json", "csv --sizes 1K-1G"):
            yield line(f"peak allreduce --from machines/{name} --nodes 4 --nic 4x200Gb/s --format {form}")
        yield line(f"peak alltoall --from machines/{name}")
    for name in ("juwels-booster-4xa100", "aws-p5-48xl-2023", "gpud-h100-8ndr-sysfs"):
        yield line(f"probe --from machines/{name} --html out.html", "out.html")
        yield line(f"doctor --from machines/{name} --html out.html", "out.html")
        yield line(f"peak allreduce --from machines/{name} --html out.html", "out.html")
    typed = "--gpus-per-node 8 --nvlink 450 --nic 8x400Gb/s"
    for operation in _OPERATIONS:
        for nodes in (1, 2, 16):
            yield line(f"peak {operation} {typed} --nodes {nodes}")
    yield line(f"peak allreduce {typed} --nodes 4 --measured 330")
    yield line(f"peak allreduce {typed} --nodes 4 --sizes 1K-1G")
    yield line("peak allreduce --nodes 4")
    yield line("doctor --from machines/juwels-booster-4xa100 --log logs/log_lines.txt")
    yield line("doctor --log logs/log_lines.txt --format json")


def _tools(names: list[str]) -> Iterator[Line]:
    for name in names:
        yield line(f"import tools/{name} --out imported/{name}", f"imported/{name}")
        yield line(f"report imported/{name}")
        yield line(f"report imported/{name} --csv")


def _odd(names: list[str]) -> Iterator[Line]:
    for name in names:
        yield line(f"report odd/{name}")
        yield line(f"report odd/{name} --csv")
        if name.startswith(("run", "rows")):
            yield line(f"report odd/{name} --html out.html", "out.html")
            yield line(f"compare reports/first-run odd/{name}")
        else:
            yield line(f"import odd/{name} --out imported/odd-{name}", f"imported/odd-{name}")
            yield line(f"probe --from odd/{name}")
            yield line(f"doctor --from odd/{name}")
            yield line(f"doctor --log odd/{name}")
            yield line(f"autopsy odd/{name}")
            yield line(f"replay odd/{name} --dry-run")
        yield line(f"gate --baseline odd/{name} reports/first-run")


def _stores(single: list[str]) -> Iterator[Line]:
    yield line(f"store add runs.db {' '.join(single)}")
    for form in ("table", "csv", "markdown", "jsonl"):
        yield line(f"store query runs.db --operation allreduce --sizes 64K --format {form}")
    yield line("history --store runs.db")
    yield line("store dashboards prometheus dashboards", "dashboards")


def _others() -> Iterator[Line]:
    for form in ("table", "csv", "jsonl"):
        yield line(f"autopsy reports/hang-dumps --format {form}")
        yield line(f"predict predict/20mbit/1-2 predict/20mbit/1-12 predict/20mbit/1-16 --nodes 24,32 --format {form}")
    yield line("autopsy reports/hang-dumps --html out.html", "out.html")
    yield line("predict predict/5mbit/1-2 predict/5mbit/1-12 predict/5mbit/1-16 --nodes 24 --html out.html", "out.html")
    for words in ("busbw", "unreliable", "CB2702", "memory copy and sum", "ring", "nonsense", "exit codes"):
        yield line(f"explain {shlex.quote(words)}")
    for kind in ("slurm", "mpirun", "torchrun", "kubernetes", "ansible", "reframe"):
        yield line(f"emit {kind} --nodes 2 --image collbench:1 -- allreduce --sizes 1K-1M")
        yield line(f"emit {kind} --nodes 2 -- allreduce --sizes 1K-1M")
    for shell in ("bash", "zsh", "fish"):
        yield line(f"completion {shell}")


def _plans() -> Iterator[Line]:
    measured = "--ranks 2 --backend simulated --dry-run"
    for command in ("allreduce --sizes 1K-1M", "p2p", "alltoall --sizes 8,1M", "init", "hunt", "pairs"):
        yield line(f"{command} {measured}")
    yield line("kv --ranks 2 --dry-run")
    yield line("replay reports/replay/run --ranks 2 --dry-run")
    yield line("workload ddp --ranks 2 --dry-run")
    yield line("run reports/suites/two-hosts.toml --ranks 2 --dry-run")
    yield line("run odd/suite-unknown-key.toml --ranks 2 --dry-run")
    yield line("run odd/suite-cut.toml --ranks 2 --dry-run")
