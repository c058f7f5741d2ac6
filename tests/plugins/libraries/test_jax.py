"""jax on CPUs, in an environment of its own: correct to the last element, or n/a with the reason; and the evidence of its rows."""

import sys
from types import SimpleNamespace

import pytest

from collbench.backends.backend import Available, Group, Unavailable
from collbench.backends.registry import backend_class
from collbench.backends.unavailable import Misconfigured, NotInstalled, UnknownVersion
from collbench.operations.registry import operations
from collbench.plugins.libraries.jax import STEPS, JaxBackend, JaxBuffers, _carried_as
from tests.cli.command import one_sentence, run
from tests.conftest import sample
from tests.contract.test_every_case import assert_as_promised, cases_of, launched
from tests.helpers import make_case
from tests.plugins.libraries.stack import LINK_BYTES_PER_S, PAYLOAD, across, collbench_of, environment_of, rows_of

INSTALL = "pip install 'collbench[jax]'"
SUPPORTED = "0.7 and newer, below 1"
SMALL = ("allreduce", "--backend", "jax", "--ranks", "2", "--sizes", "8")


def test_it_is_found_under_its_name_in_versions_from_0_7_on(monkeypatch):
    assert backend_class("jax") is JaxBackend
    for version in ("0.7.0", "0.10.2", "0.99"):
        there(monkeypatch, {"jax": version, "jaxlib": version}, {"JAX_PLATFORMS": "cpu"})
        assert JaxBackend.probe() == Available(f"jax {version} over Gloo")


@pytest.mark.parametrize(("versions", "environment", "answer"), [
    ({}, {}, NotInstalled("jax", INSTALL)), ({"jax": "0.10.2"}, {}, NotInstalled("jaxlib", INSTALL)),
    ({"jax": "0.4.38", "jaxlib": "0.4.38"}, {}, UnknownVersion("jax", "0.4.38", SUPPORTED, INSTALL)),
    ({"jax": "1.0.0", "jaxlib": "1.0.0"}, {}, UnknownVersion("jax", "1.0.0", SUPPORTED, INSTALL)),
    (
        {"jax": "0.10.2", "jaxlib": "0.10.2"}, {"JAX_PLATFORMS": "cuda"},
        Misconfigured(
            "JAX_PLATFORMS", "is 'cuda', but collbench measures jax on CPUs with Gloo", "unset JAX_PLATFORMS, or set it to 'cpu'"
        ),
    ),
    (
        {"jax": "0.10.2", "jaxlib": "0.10.2"}, {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"},
        Misconfigured(
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION", "is 'mpi', but collbench measures jax on CPUs with Gloo",
            "unset JAX_CPU_COLLECTIVES_IMPLEMENTATION, or set it to 'gloo'",
        ),
    ),
])  # fmt: skip
def test_why_it_is_not_available(monkeypatch, versions, environment, answer):
    there(monkeypatch, versions, environment)
    assert JaxBackend.probe() == Unavailable.because(answer)


def there(monkeypatch, versions, environment):
    monkeypatch.setattr("collbench.backends.backend.version_of", lambda name: versions.get(name, ""))
    for name in ("JAX_PLATFORMS", "JAX_CPU_COLLECTIVES_IMPLEMENTATION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("compiled", "carried"), [
    ("ROOT %psum.7 = f32[16]{0} all-reduce(%param.1), channel_id=1, replica_groups={{0,1}}", "f32"),
    ("%a = (s8[8]{0}, s8[8]{0}) all-to-all(%wrapped_slice, %wrapped_slice.1), channel_id=1", "s8"),
    ("%wrapped_convert = f32[4]{0} fusion(%param)\n ROOT %p = f16[4]{0} collective-permute(%param.1), channel_id=1", "f16"),
    ("ROOT %copy = f32[16]{0} copy(%param)", ""),  # one rank: XLA has nothing to do
])  # fmt: skip
def test_in_which_type_the_elements_travel_is_read_from_what_xla_compiled(compiled, carried):
    assert _carried_as(compiled) == carried


class Here:
    """jax's functions that hold arrays, on numpy's: what is put lies apart, as its own part of a whole."""

    sharding = SimpleNamespace(NamedSharding=lambda mesh, spec: None, PartitionSpec=lambda axis: None)

    @staticmethod
    def device_put(elements, device, *, may_alias):
        assert may_alias is False
        return SimpleNamespace(block_until_ready=elements.copy)

    @staticmethod
    def make_array_from_single_device_arrays(shape, sharding, parts):
        return SimpleNamespace(shape=shape, addressable_shards=[SimpleNamespace(data=part) for part in parts])


def buffers_of_one_rank(operation):
    case = make_case(operation=operation, in_place=False, redop="sum")
    group = Group((0,), (0,), SimpleNamespace(local_devices=["cpu"]))
    made = JaxBuffers(Here, operations()[operation], case, group, 2)
    for slot in range(2):
        made.fill(slot, for_check=True)
    return made


def test_what_jax_made_is_checked_and_wrong_or_missing_results_are_found():
    buffers = buffers_of_one_rank("allreduce")
    assert buffers.inputs[1].addressable_shards[0].data.tolist() == buffers.send(0, 1).tolist()
    buffers.results[1] = buffers.inputs[1]  # of one rank the sum is its own elements
    assert buffers.check(1) == [None]
    (never,) = buffers.check(0)
    assert never.wrong == buffers.places[0].count
    wrong = buffers.inputs[1].addressable_shards[0].data
    wrong[3] += 1
    (one,) = buffers.check(1)
    assert (one.wrong, one.index) == (1, 3)


def test_a_jax_without_memory_is_an_error_of_memory(monkeypatch):
    def full(*_, **__):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 32 bytes.\nmore")

    monkeypatch.setattr(Here, "device_put", full)
    with pytest.raises(MemoryError, match=r"jax .*\d+ bytes: RESOURCE_EXHAUSTED: "):
        buffers_of_one_rank("allreduce")


@pytest.mark.system
def test_a_broken_jax_is_one_sentence_and_exit_code_2(tmp_path):
    folder = tmp_path / "broken"
    (folder / "jax").mkdir(parents=True)
    (folder / "jax" / "__init__.py").write_text("raise RuntimeError('jaxlib is version 0.4, but this jax needs 0.10')\n")
    for package in ("jax", "jaxlib"):
        (folder / f"{package}-0.10.2.dist-info").mkdir()
        (folder / f"{package}-0.10.2.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.10.2\n")
    path = {"PYTHONPATH": ":".join([str(folder), *sys.path])}
    done = run(tmp_path, "allreduce", "--backend", "jax", "--ranks", "1", "--sizes", "8", env=path)
    why = "RuntimeError: jaxlib is version 0.4, but this jax needs 0.10"
    assert one_sentence(done).startswith(f"jax 0.10.2 is installed, but its import fails ({why}): pip install --force-reinstall")


@pytest.mark.long
@pytest.mark.timeout(320)
@pytest.mark.parametrize("n", sample([2, 3], 1))
def test_every_case_is_right_or_not_applicable(n):
    asked, outcome = launched("jax", n, environment_of("jax"))
    assert outcome.code == 0, outcome.stderr
    cases = cases_of(asked, "jax", n)
    ran = {row.operation for row in outcome.rows if row.na is None}
    assert ran == {name for name in STEPS if name not in ("broadcast", "barrier")}
    for row, case in zip(outcome.rows, cases, strict=True):
        assert_as_promised(row, case, "jax", n)


@pytest.mark.long
def test_a_row_shows_versions_and_settings_and_nothing_else_is_on_stdout(tmp_path):
    done = collbench_of("jax", tmp_path, *SMALL, "--dtype", "float32,bfloat16,float8_e5m2", "--format", "json", env={"XLA_FLAGS": ""})
    assert done.returncode == 0, done.stderr
    rows = {row["dtype"]: row for row in rows_of(done)}
    actual = rows["float32"]["evidence"]["libraries"]
    assert actual["jax"] == actual["jaxlib"] != ""
    assert (actual["cpu_collectives"], actual["gloo_interface"], actual["compile"]) == ("gloo", "lo", "not timed")
    types = {dtype: row["evidence"]["libraries"]["wire_type"] for dtype, row in rows.items()}
    assert types == {"float32": "f32", "bfloat16": "f32", "float8_e5m2": "f16"}
    assert {(row["in_place"], row["wrong"], row["api"]) for row in rows.values()} == {(False, 0, "jax")}


@pytest.mark.long
def test_a_variable_that_asks_for_another_jax_is_one_sentence_and_hides_no_other_backend(tmp_path):
    done = collbench_of("jax", tmp_path, *SMALL, env={"JAX_PLATFORMS": "tpu"})
    sentence = one_sentence(done)
    assert "JAX_PLATFORMS is 'tpu'" in sentence
    assert "unset JAX_PLATFORMS" in sentence
    done = collbench_of("jax", tmp_path, "backends", env={"JAX_PLATFORMS": "tpu"})
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "JAX_PLATFORMS is 'tpu'" in lines["jax"]
    assert "Gloo of torch" in lines["gloo"]


@pytest.mark.long
@pytest.mark.hosts
@pytest.mark.timeout(180)
def test_over_a_link_of_1_gbit_it_reads_what_tcp_can_have_of_it_or_less(hosts, tmp_path):
    run = across(hosts(2, "1gbit"), "jax", tmp_path / "run", ["allreduce", "--backend", "jax", "--sizes", "4M", "--max-time", "4"])
    (row,) = run.rows
    assert (row.na, row.wrong, row.evidence["libraries"]["gloo_interface"]) == (None, 0, "eth0")
    assert 0.8 < row.busbw_bytes_per_s / LINK_BYTES_PER_S / PAYLOAD < 1.03  # measured 0.91 to 0.93: XLA's all-reduce does not fill the link
