"""`init` over NCCL: communicators are made, split, shrunk and freed in each iteration; and the memory that they take."""

import json
import subprocess
import sys

import pytest

from collbench.backends.nccl.binding import Communicators
from collbench.backends.nccl.library import CREATIONS, DEVICE_APIS, NCCL, REGISTRATIONS, features_of
from collbench.operations.sweep import REGISTRATIONS as NAMES
from collbench.operations.unsupported import DeviceApiUnsupported, OperationUnsupported, OptionUnsupported, VersionNeeded
from tests.fake_gpu import environment

OF_INIT = {"init_create", "init_first", "init_halves", "init_alternate", "init_nodes", "init_reform"}
QUICK = ("--backend", "nccl", "--max-time", "0.05", "-n", "3", "-w", "1")


def collbench(folder, *words, gpus=4, **told):
    """Runs a command where the doubles are found; (exit code, rows, stderr)."""
    line = ["timeout", "-k", "5", "60", sys.executable, "-m", "collbench", *words, "--format", "json"]
    done = subprocess.run(line, env=environment(gpus, **told), capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, [json.loads(row) for row in done.stdout.splitlines()], done.stderr


@pytest.mark.long
@pytest.mark.parametrize("each", [1, 2])
def test_groups_are_made_and_freed_by_processes_with_one_and_with_two_gpus(tmp_path, each):
    code, rows, stderr = collbench(tmp_path, "init", *QUICK, "--ranks", "2", "-g", str(each))
    assert (code, {row["operation"] for row in rows if row["na"] is None}) == (0, OF_INIT), stderr
    assert {(row["ranks"], row["wrong"]) for row in rows} == {(2 * each, None)}
    assert all(row["time_s"]["p50"] > 0 for row in rows)
    assert {row["evidence"]["communicator"]["source"] for row in rows} == {"ncclCommMemStats"}


@pytest.mark.long
def test_what_an_older_library_lacks_is_not_measured(tmp_path):
    lacks = ("ncclCommSplit", "ncclCommShrink", "ncclCommMemStats")
    code, rows, stderr = collbench(tmp_path, "init", *QUICK, "--ranks", "2", nccl_version=21703, lacks=lacks)
    assert code == 0, stderr
    needs = {name: VersionNeeded("NCCL", function, ".".join(map(str, since)), "2.17.3") for name, (function, since) in CREATIONS.items()}
    refused = {row["operation"]: row["na"] for row in rows if row["na"]}
    assert refused == {name: fact.render() for name, fact in needs.items()} | {
        "init_session": OperationUnsupported("nccl", "init_session").render()
    }
    assert not any("communicator" in row["evidence"] for row in rows)  # the double takes no memory for a communicator: unknown, not 0


@pytest.mark.long
def test_a_graph_of_calls_of_the_host_is_refused(tmp_path):
    code, rows, _ = collbench(tmp_path, "init", *QUICK, "--ranks", "2", "--mode", "graph")
    assert (code, {row["na"] for row in rows}) == (
        2, {OptionUnsupported(("--mode graph",), name, "operations that move data").render() for name in OF_INIT},
    )  # fmt: skip


@pytest.mark.long
def test_windows_are_registered_and_calls_of_kernels_are_refused_with_the_reason(tmp_path):
    words = ("--sizes", "1000", "--ranks", "2", "--buffers", "fixed", "--registration", ",".join(NAMES))
    code, rows, stderr = collbench(tmp_path, "allreduce", *QUICK, *words, gpus=2)
    assert (code, {row["registration"] for row in rows if row["wrong"] == 0}) == (0, {"none", *REGISTRATIONS}), stderr
    refused = {row["registration"]: row["na"] for row in rows if row["na"]}
    assert refused == {kind: DeviceApiUnsupported("NCCL", kind, "allreduce", "2.32.3").render() for kind in DEVICE_APIS}


class Library:
    """A library of some functions."""

    def __init__(self, *functions, version=(2, 29, 7), dialect=NCCL):
        self.functions, self.version, self.dialect = functions, version, dialect

    def has(self, name):
        return name in self.functions


def test_parts_of_the_library_are_known_by_a_function_or_by_the_version():
    parts = {part.name: part.available for part in features_of(Library("ncclCommSplit", version=(2, 28, 3)))}
    assert (parts["split of a communicator"], parts["device API"], parts["network calls of kernels (GIN)"]) == (True, False, False)
    assert {part.available for part in features_of(Library()) if "GIN" in part.name} == {True}


def test_memory_of_an_uncounted_communicator_is_what_is_no_longer_free():
    library = Library()
    library.handle = type("Handle", (), {"ncclCommInitRank": type("Function", (), {})()})()
    communicators = Communicators(library)
    communicators._taken_bytes |= {7: 30, 8: 50}
    assert communicators.most_bytes([7, 8]) == (50, "free memory at its creation")
    assert communicators.most_bytes([9]) is None
