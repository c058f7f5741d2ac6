"""Horovod over its Gloo, in an environment of its own: right to the last element, or n/a with the reason."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.backends.backend import Settings, Unavailable
from collbench.backends.unavailable import Misconfigured, NotInstalled, UnknownVersion, WrongBuild
from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.operations.unsupported import DtypeUnsupported, LimitExceeded, RedopUnsupported
from collbench.plugins.libraries import horovod
from collbench.plugins.libraries import horovod as horovod_start
from collbench.plugins.libraries.horovod import HorovodBackend, horovod_settings, obstacle, unsupported
from tests.cli.command import one_sentence, run
from tests.conftest import sample
from tests.contract.launch import launch
from tests.contract.test_every_case import assert_as_promised, cases_of, launched
from tests.helpers import make_case
from tests.plugins.libraries.stack import collbench_of, environment_of, rows_of, share_of_link

SUMS = ["float64", "float32", "float16", "int64", "int32"]
long = pytest.mark.long
GET = "tools/horovod .venv-horovod builds it with Gloo, into an environment of its own"


def made_up_installation(monkeypatch, versions, folder: Path | None = None):
    """Pretend that pip has these versions; Horovod's package, if any, is in `folder`."""
    monkeypatch.setattr(horovod_start, "installed", versions.get)
    found = SimpleNamespace(submodule_search_locations=[str(folder)])
    monkeypatch.setattr(horovod_start, "find_spec", lambda name: found if name in versions else None)


@pytest.mark.parametrize(("versions", "env", "why"), [
    ({}, {}, NotInstalled("horovod", GET)),
    ({"horovod": "1.0.0", "torch": "2.13.0"}, {}, UnknownVersion("horovod", "1.0.0", "0.28.x", GET)),
    ({"horovod": "0.28.1"}, {}, NotInstalled("torch", GET, "horovod 0.28.1")),
    (
        {"horovod": "0.28.1", "torch": "2.13.0"},
        {"HOROVOD_RANK": "0"},
        Misconfigured("HOROVOD_RANK", "is set, as horovodrun does", "start collbench with --ranks, mpirun, srun or torchrun instead"),
    ),
])  # fmt: skip
def test_why_it_is_not_available(monkeypatch, versions, env, why):
    made_up_installation(monkeypatch, versions)
    assert obstacle(env) == why


def test_a_build_for_another_torch_or_for_none_and_a_missing_package_are_named(monkeypatch, tmp_path):
    made_up_installation(monkeypatch, {"horovod": "0.28.1", "torch": "2.14.0+cpu"}, tmp_path)
    assert obstacle({}) == WrongBuild("horovod", "0.28.1", "was built without torch", GET)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/mpi_lib_v2.cpython-311.so").touch()
    assert obstacle({}) is None  # it does not name the version
    (tmp_path / "metadata.json").write_text(json.dumps({"pytorch": "2.13.0+cpu", "dummy": "none"}))
    assert obstacle({}) == WrongBuild("horovod", "0.28.1", "was built for torch 2.13.0+cpu, but torch 2.14.0+cpu is installed", GET)
    (tmp_path / "metadata.json").write_text(json.dumps({"pytorch": "2.14.0"}))
    assert obstacle({}) is None
    made_up_installation(monkeypatch, {})
    assert HorovodBackend.probe() == Unavailable.because(NotInstalled("horovod", GET))


@pytest.mark.parametrize("cycle", ["fast", "-1", "nan", "inf", ""])
def test_a_cycle_that_horovod_would_take_for_none_is_refused(cycle):
    with pytest.raises(UsageError, match=r"^HOROVOD_CYCLE_TIME is '.*milliseconds"):
        horovod_settings({"HOROVOD_CYCLE_TIME": cycle})


def test_settings_of_the_user_are_kept():
    assert horovod_settings({"HOROVOD_CYCLE_TIME": "0.1", "HOROVOD_CACHE_CAPACITY": "0", "HOME": "/"}) == {
        "horovod_cache_capacity": "0",
        "horovod_cycle_time": "0.1",
    }


class StandInHorovod:
    """Starts and process sets, as they were asked for; no Horovod can be had without its build."""

    def __init__(self):
        self.said, self.global_process_set = [], "all"

    def init(self):
        self.said.append(("init", os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"]))

    def shutdown(self):
        self.said.append(("shutdown",))

    def add_process_set(self, ranks):
        self.said.append(("set", *ranks))
        return f"of {ranks}"


@pytest.fixture
def opened(monkeypatch):
    def open_(**user):
        for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
            monkeypatch.delenv(name)
        for name, value in user.items():
            monkeypatch.setenv(name, value)
        hvd, torch = StandInHorovod(), SimpleNamespace(set_num_threads=lambda n: None, __version__="2.13.0")
        monkeypatch.setattr(horovod, "load_horovod", lambda: hvd)
        monkeypatch.setattr(horovod, "load_torch", lambda: torch)
        monkeypatch.setattr(horovod, "rendezvous", lambda world: nullcontext())
        monkeypatch.setattr(horovod, "interface_with", lambda address: "lo")
        me = SimpleNamespace(rank=0, host="here", address="127.0.0.1")
        world = SimpleNamespace(rank=0, size=4, me=me, hosts=["here"], on_host=lambda host=None: [me])
        monkeypatch.setattr(os, "environ", dict(os.environ))
        backend = HorovodBackend()
        backend.open(world, Settings())
        return backend, hvd.said

    return open_


def test_it_starts_again_for_the_first_group_and_the_row_reports_it(opened):
    backend, said = opened()
    assert (backend.communicator((0, 1, 2, 3)), said) == ("all", [("init", "0")])
    assert backend.versions()["horovod_dynamic_process_sets"] == "0"
    assert [backend.communicator(ranks) for ranks in ((1, 0), (2, 3), (0, 1))] == ["of [0, 1]", "of [2, 3]", "of [0, 1]"]
    assert said == [("init", "0"), ("shutdown",), ("init", "1"), ("set", 0, 1), ("set", 2, 3)]
    assert backend.versions()["horovod_dynamic_process_sets"] == "1"


def test_settings_for_groups_hold_from_the_start_or_from_the_first_group(opened):
    backend, said = opened(HOROVOD_DYNAMIC_PROCESS_SETS="1")
    backend.communicator((0, 1))
    assert (said, backend.versions()["horovod_dynamic_process_sets"]) == ([("init", "1"), ("set", 0, 1)], "1")
    backend, _ = opened(HOROVOD_DYNAMIC_PROCESS_SETS="0")
    assert backend.versions()["horovod_dynamic_process_sets"] == "0"
    backend.communicator((0, 1))
    assert backend.versions()["horovod_dynamic_process_sets"] == "1"


class StandInTorch:
    """Types as torch has them."""

    float32, bfloat16, uint8 = "torch.FloatTensor", "torch.BFloat16Tensor", "torch.ByteTensor"

    def empty(self, n, dtype):
        return type("Tensor", (), {"type": lambda self: dtype})()


REDUCTIONS = ("sum", "avg", "min", "max", "prod")
FUNCTIONS = ("allreduce_async_torch_FloatTensor", "allgather_async_torch_ByteTensor")
BUILD = SimpleNamespace(**{f"horovod_torch_{name}": True for name in FUNCTIONS})
STAND_IN_HOROVOD = SimpleNamespace(mpi_ops=SimpleNamespace(mpi_lib=BUILD))


@pytest.mark.parametrize(
    ("operation", "case", "why"),
    [
        ("allreduce", make_case(), None),
        ("allgather", make_case("float8_e5m2", redop=None), None),  # moved as bytes
        ("allreduce", make_case("bfloat16"), DtypeUnsupported("horovod", "bfloat16", "send", "allreduce")),
        ("reducescatter", make_case(), DtypeUnsupported("horovod", "float32", "send", "reducescatter")),
        ("reducescatter", make_case(redop="max"), RedopUnsupported("horovod over Gloo", "max", "reducescatter", ("sum", "avg"))),
        ("allreduce", make_case(redop="bxor"), RedopUnsupported("horovod over Gloo", "bxor", "allreduce", REDUCTIONS)),
        ("allreduce", make_case("float32", 2**33), LimitExceeded("horovod", "elements per tensor", 2**31 - 1)),
    ],
)
def test_what_a_build_cannot_do(operation, case, why):
    assert unsupported(StandInTorch(), STAND_IN_HOROVOD, operations()[operation], case, 2) == why


@long
@pytest.mark.parametrize("n", [2, *sample([3], 0)])
def test_every_operation_is_right_or_not_applicable(n):
    asked, outcome = launched("horovod", n, environment_of("horovod"))
    assert outcome.code == 0, outcome.stderr
    for row, case in zip(outcome.rows, cases_of(asked, "horovod", n), strict=True):
        assert_as_promised(row, case, "horovod", n)


@long
@pytest.mark.parametrize("n", [2, 3])
def test_every_type_and_reduction_that_it_has(tmp_path, n):
    asked = [
        {"operations": ["allreduce"], "sizes": [1003], "dtypes": SUMS, "redops": ["sum", "prod", "min", "max"]},
        {"operations": ["allreduce", "reducescatter"], "sizes": [1003], "dtypes": SUMS[:3], "redops": ["avg"]},
        {"operations": ["reducescatter"], "sizes": [1003], "dtypes": SUMS, "redops": ["sum"]},
        {"operations": ["broadcast"], "sizes": [1003], "dtypes": [*SUMS, "uint8", "int8"], "roots": [0, n - 1]},
        {"operations": ["allgather", "alltoall"], "sizes": [1003], "dtypes": [*SUMS, "uint8", "int8"]},
        {"operations": ["allreduce"], "sizes": [300_001], "dtypes": ["int32"], "mode": "pipelined", "buffers": "rotating"},
    ]
    found = launch(tmp_path, "horovod", n, asked, python=environment_of("horovod"))
    assert (found.code, len(found.rows)) == (0, 5 * 4 + 2 * 3 + 5 + 7 * 2 + 2 * 7 + 1), found.stderr
    assert {(row.na, row.checked, row.wrong) for row in found.rows} == {(None, 1, 0)}


@long
def test_groups_side_by_side_and_what_the_rows_report_of_the_library(tmp_path, monkeypatch):
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "0.5")
    names = ["allreduce", "broadcast", "allgather", "alltoall", "reducescatter", "barrier"]
    asked = [{"operations": names, "sizes": [1003], "dtypes": ["float32"], "roots": [1], "split": "MOD 2"}]
    found = launch(tmp_path, "horovod", 4, asked, python=environment_of("horovod"))
    assert (found.code, {(row.na, row.wrong, row.group) for row in found.rows}) == (0, {(None, 0, "MOD 2")}), found.stderr
    actual = found.rows[0].evidence["libraries"]
    assert (actual["horovod"], actual["horovod_cycle_time"], actual["horovod_operations"]) == ("0.28.1", "0.5", "gloo")
    assert actual["torch"].startswith("2.")


@long
def test_it_prints_nothing_of_its_own_and_refuses_horovodrun(tmp_path):
    words = ("allreduce", "--backend", "horovod", "--ranks", "2", "--sizes", "1K", "--dtype", "float16", "--format", "json", "--quiet")
    done = collbench_of("horovod", tmp_path, *words)
    assert (done.returncode, [row["wrong"] for row in rows_of(done)]) == (0, [0]), done.stderr
    assert all(line.startswith(("collbench: ", "run folder: ")) for line in done.stderr.splitlines()), done.stderr
    words = ("allreduce", "--backend", "horovod", "--ranks", "2", "--sizes", "8")
    (tmp_path / "second").mkdir()
    done = collbench_of("horovod", tmp_path / "second", *words, env={"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"})
    assert done.returncode == 2 and "HOROVOD_RANK" in one_sentence(done) and "--ranks" in one_sentence(done)


def stand_in(folder: Path, torch_py: str) -> dict[str, str]:
    package, record = folder / "horovod/torch", folder / "horovod-0.28.1.dist-info"
    package.mkdir(parents=True)
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (folder / "horovod/__init__.py").touch()
    (package / "__init__.py").write_text(torch_py)
    (package / "mpi_lib_v2.stand-in.so").touch()
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[3])])}


@long
@pytest.mark.parametrize(("text", "expected"), [
    # what horovod 0.28.1 does where its library does not load: it prints, and goes on
    ("print('Extension has not been built')", "is installed, but does not load (Extension has not been built)"),
    ("raise OSError('mpi_lib_v2.so: undefined symbol')", "is installed, but does not load (mpi_lib_v2.so: undefined symbol)"),
    ("init = print\ngloo_built = lambda: False", "was built without Gloo, over which collbench measures it"),
])  # fmt: skip
def test_a_broken_one_is_one_sentence_and_exit_code_2(tmp_path, text, expected):
    env = stand_in(tmp_path / "site", text)
    done = run(tmp_path, "allreduce", "--backend", "horovod", "--ranks", "1", "--sizes", "8", env=env)
    assert (done.returncode, one_sentence(done)) == (2, f"horovod 0.28.1 {expected}: {GET}")


@long
@pytest.mark.hosts
def test_two_hosts_use_most_of_the_link_between_them_and_never_more(hosts, tmp_path):
    between = hosts(2, "1gbit")
    least = {"allreduce": 0.5, "allgather": 0.25, "broadcast": 0.5, "alltoall": 0.25, "reducescatter": 0.2}  # seen: .99, .49, 1.0, .49, .53
    for operation in sample(sorted(least), 2):
        share = share_of_link(between, "horovod", operation, tmp_path / operation)
        assert least[operation] <= share <= 1.01, (operation, share)  # the shaper lets 256 kbit pass at once
