"""collbench.measure: starts ranks as the command does, and raises its sentences."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import collbench
from tests.cli import test_check
from tests.cli.command import environment, running

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("folder")]
faulty = test_check.faulty  # a fixture


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without variables of a launcher."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", environment())
    return tmp_path


def test_a_measurement_is_a_stored_run(folder: Path) -> None:
    runs = collbench.measure("allreduce", sizes=[8, "1K"], backend="simulated", ranks=4, dtype=["float32", "int32"])
    assert [(row.size_bytes, row.ranks, row.dtype) for row in sorted(runs.rows, key=lambda row: (row.dtype, row.size_bytes))] == [
        (8, 4, "float32"), (1024, 4, "float32"), (8, 4, "int32"), (1024, 4, "int32"),
    ]  # fmt: skip
    assert runs.paths[0].parent == Path("runs") and runs[0].info["exit_code"] == 0
    command = runs[0].info["command"]
    assert command[:2] == ["collbench", "allreduce"] and "--sizes=8,1K" in command


@pytest.mark.long  # starts two launches
def test_launches_are_one_run_each(folder: Path) -> None:
    runs = collbench.measure("p2p", only="latency", sizes=8, backend="simulated", ranks=2, launches=2, out=folder / "out")
    assert [path.name for path in runs.paths] == ["launch-1", "launch-2"]
    assert {row.operation for row in runs.rows} == {"p2p_latency"}


@pytest.mark.often
@pytest.mark.long  # starts two ranks
def test_real_ranks_are_started(folder: Path) -> None:
    pytest.importorskip("mpi4py")
    (row,) = collbench.measure("allreduce", sizes="1K", backend="mpi", ranks=2, evidence="off").rows
    assert (row.ranks, row.backend, row.na, row.wrong) == (2, "mpi", None, 0)


@pytest.mark.parametrize(("options", "words"), [
    ({"sizes": "1Q"}, "1Q"), ({"backend": "nccl2"}, "backend 'nccl2' is unknown"), ({"ranks": 0}, "--ranks"),
    ({"max_time": "x\0y"}, "null byte"),
])  # fmt: skip
def test_bad_arguments_raise_the_sentence_of_the_command(options: dict[str, object], words: str, folder: Path) -> None:
    with pytest.raises(collbench.UsageError, match=words) as raised:
        collbench.measure("allreduce", **options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value) and not str(raised.value).startswith("collbench:")
    assert not list(folder.iterdir())


@pytest.mark.long  # starts two launches
def test_a_folder_that_holds_a_run_is_not_overwritten(folder: Path) -> None:
    collbench.measure("barrier", backend="simulated", ranks=2, out="out")
    before = Path("out/cells.jsonl").read_bytes()
    with pytest.raises(collbench.UsageError, match="already holds a run"):
        collbench.measure("barrier", backend="simulated", ranks=2, out="out")
    assert Path("out/cells.jsonl").read_bytes() == before


@pytest.mark.long  # starts two ranks
def test_cases_that_cannot_run_raise_the_reason(folder: Path) -> None:
    with pytest.raises(collbench.UsageError) as raised:
        collbench.measure("allreduce", backend="socket", sizes=8, ranks=2)
    assert "socket" in str(raised.value) and "exit code" not in str(raised.value)


@pytest.mark.long  # starts a launch for each
@pytest.mark.parametrize(("backend", "stored"), [("corrupting", True), ("killed", False)])
def test_wrong_data_and_a_crash_raise_the_sentence_and_keep_the_rows(backend, stored, folder, faulty, monkeypatch):
    monkeypatch.setattr("os.environ", {**os.environ, **faulty})
    with pytest.raises(collbench.RunFailed) as raised:
        collbench.measure("allreduce", sizes=8, backend=backend, ranks=2, out="out")
    assert "exit code" not in str(raised.value) and raised.value.__notes__ == ["what was measured is in out"]
    rows = collbench.read("out").rows
    assert [bool(row.wrong) for row in rows] == ([True] if stored else [])


@pytest.mark.long  # waits for ranks
def test_an_interruption_ends_the_ranks(folder: Path) -> None:
    def interrupt() -> None:
        end = time.monotonic() + 20
        while not list(folder.glob("out/run.json")) and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        collbench.measure("p2p", backend="socket", sizes="1M-1G", ranks=2, max_time=30, out="out")
    thread.join()
    assert running(folder) == [os.getpid()]
    assert collbench.read("out")[0].info["exit_code"] == 130
