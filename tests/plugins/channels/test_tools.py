"""`collbench pairs --tools` and `probe --measure --tools`: rows of external tools, and tools that fail. Most tools are test doubles."""

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from collbench.plugins.hunt.records import read_pairs
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.cli.command import one_sentence, run, run_here, running, start, until
from tests.conftest import cannot

pytestmark = pytest.mark.system

PRINTED = Path(__file__).with_name("measure") / "wire/printed"
PAIRS = ("pairs", "--backend", "socket", "--ranks", "2", "--size", "4K", "--window", "2", "--out", "run", "--timeout", "20")
# Like iperf3: prints its version, listens at the given port, or runs the test's code as a client.
DOUBLE = """#!{python}
import signal, socket, sys, time
if "--version" in sys.argv:
    print("iperf 3.99 (double)")
elif "--server" in sys.argv:
    {server}
    listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    time.sleep(60)
else:
    {client}
"""
GOOD = f"print(open({str(PRINTED / 'iperf3.json')!r}).read())"


def double(folder: Path, client: str, server: str = "pass") -> dict[str, str]:
    """Return an environment in which `iperf3` is a double: its client runs this, its server runs this first."""
    tool = folder / "bin" / "iperf3"
    tool.parent.mkdir()
    tool.write_text(DOUBLE.format(python=sys.executable, client=client, server=server))
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


def external(folder: Path) -> list[Row]:
    found = read_pairs(read_run(folder / "run"))
    assert found and not found.warnings
    return found.external


def test_the_rows_of_external_tools_are_separate_and_a_resumed_run_runs_only_the_tools_that_it_lacks(tmp_path: Path) -> None:
    env = double(tmp_path, GOOD)
    done = run(tmp_path, *PAIRS, "--tools", "iperf3", env=env)
    assert done.returncode == 0, done.stderr
    rows = external(tmp_path)
    assert [row.group for row in rows] == ["0-1", "1-0"]
    for row in rows:
        assert (row.operation, row.backend, row.api, row.ranks, row.nodes) == ("p2p_bandwidth", "iperf3", "tcp", 2, 1)
        assert row.time_s and row.time_s.p50 == pytest.approx(4096 * 1.000821 / 2903244800)
        assert (row.time_s.ci_low, row.time_s.ci_high, row.n, row.wrong, row.flags) == (None, None, 0, None, ("their_tool", "unverified"))
        tool = row.evidence["tool"]
        assert (tool["name"], tool["version"]) == ("iperf3", "3.99")
        assert re.fullmatch(r"iperf3 --client 127\.0\.0\.1 --port \d+ --time 1 --json", tool["client"])
        assert row.evidence["statistic"].startswith("mean over 1.00 s") and row.evidence["path"].startswith("loopback")
    compared = re.compile(r"^rank 0 \S+  rank 1 \S+  iperf3  .*2\.90 GB/s +\S+ GB/s +loopback$", re.MULTILINE)
    assert compared.search(done.stdout)
    assert "\nexternal tool: " in done.stdout
    assert (tmp_path / "run/cells.jsonl").read_text() == "" and json.loads((tmp_path / "run/run.json").read_text())["rows"] == 1
    again, title = run_here(tmp_path, "report", "run").stdout, "external tools compared with collbench"
    assert again[again.index(title) :] == done.stdout[done.stdout.index(title) :]
    shown = json.loads(run_here(tmp_path, "report", "run", "--format", "json").stdout)
    assert [row["backend"] for row in shown["theirs"]] == ["iperf3", "iperf3"]
    assert "iperf3" not in run_here(tmp_path, "report", "run", "--csv").stdout
    judged = run_here(tmp_path, "baseline", "add", "base", "run")
    assert judged.returncode == 2

    tools, rounds, about = (tmp_path / "run" / name for name in ("tools.jsonl", "pairs.jsonl", "run.json"))
    kept, before = tools.read_text().splitlines(keepends=True)[0], rounds.read_bytes()
    tools.write_text(kept)
    known = json.loads(about.read_text())
    del known["finished_utc"], known["exit_code"], known["rows"]
    about.write_text(json.dumps(known))
    line = [word for word in PAIRS if word not in ("--out", "run")]
    done = run(tmp_path, *line, "--tools", "iperf3", "--resume", "run", env=env)
    assert done.returncode == 0 and "run has 1 round: " in done.stderr, done.stderr
    assert rounds.read_bytes() == before and tools.read_text().startswith(kept)
    assert [row.group for row in external(tmp_path)] == ["0-1", "1-0"]
    assert compared.search(done.stdout)


@pytest.mark.often("garbage")
@pytest.mark.long
@pytest.mark.parametrize(("client", "server", "why"), [
    ("print('\\x1b[2Jgarbage')", "pass", "?[2Jgarbage"), ("sys.exit('out of memory')", "pass", "out of memory"),
    (f"{GOOD}; sys.exit('later')", "pass", "code 1: later"), ("time.sleep(60)", "pass", "6 s"),
    (GOOD, "sys.exit('the port is taken')", "the port is taken"),
], ids=["garbage", "exits 1", "figures and exits 1", "hangs", "no server"])  # fmt: skip
def test_a_tool_that_fails_gives_a_row_with_the_reason(client: str, server: str, why: str, tmp_path: Path) -> None:
    done = run(tmp_path, *PAIRS[:-1], "8", "--tools", "iperf3", env=double(tmp_path, client, server))
    assert done.returncode == 0, done.stderr
    rows = external(tmp_path)
    assert len(rows) == 2 and all(row.na and row.na.endswith(why) and row.time_s is None for row in rows), rows
    assert done.stderr.count(why) == 1 and done.stdout.count(f"{why})") == 2
    assert "\x1b" not in done.stdout + done.stderr
    until(lambda: not running(tmp_path), "the end of its tools", 5)


@pytest.mark.long
def test_the_tools_get_as_much_time_as_the_pairs(tmp_path: Path) -> None:
    typed = ("pairs", "--backend", "socket", "--ranks", "3", "--size", "4K", "--window", "2", "--budget", "0.001", "--out", "run")
    done = run(tmp_path, *typed, "--tools", "iperf3", env=double(tmp_path, GOOD))
    assert done.returncode == 0, done.stderr
    assert "the external tools ran between 1 of 2 pairs: --budget is used up; increase it for more" in done.stderr
    first, second = (row.group for row in external(tmp_path))
    assert sorted(first.split("-")) == sorted(second.split("-")) and first != second


@pytest.mark.long
@pytest.mark.parametrize("blow", ["interrupt", "kill"])
def test_a_launch_that_ends_early_leaves_no_process(blow: str, tmp_path: Path) -> None:
    line = start(tmp_path, *PAIRS, "--tools", "iperf3", env=double(tmp_path, "time.sleep(60)"))
    until(lambda: clients(tmp_path), "the tool", 30)
    if blow == "kill":
        (rank,) = {psutil.Process(each).ppid() for each in clients(tmp_path)}
        os.kill(rank, signal.SIGKILL)
    else:
        line.send_signal(signal.SIGINT)
    assert line.wait(20) == (4 if blow == "kill" else 130), (tmp_path / "stderr").read_text()
    until(lambda: not running(tmp_path), "the end of all of them", 5)


def clients(folder: Path) -> list[int]:
    """Return the processes of the folder that end a tool's client after its time."""
    found = []
    for pid in running(folder):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--client" in words and Path(words[0]).name == "timeout":
                found.append(pid)
    return found


@pytest.mark.long
@pytest.mark.parametrize("typed", [PAIRS, ("probe", "--measure", "--max-time", "0.1")], ids=["pairs", "probe"])
def test_the_error_of_a_missing_tool_has_its_package(typed: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "timeout", "setpriv"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    done = run(tmp_path, *typed, "--tools", "fi_pingpong", program=("env", f"PATH={tmp_path}/bin", sys.executable, "-m", "collbench"))
    said = one_sentence(done)
    assert "fi_pingpong" in said and "apt-get install libfabric-bin" in said and [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.long
def test_probe_measures_with_real_tools(tmp_path: Path) -> None:
    typed = ("probe", "--measure", "--max-time", "0.1", "--tools", "iperf3,fi_pingpong", "--format", "json")
    done = run(tmp_path, *typed)
    if done.returncode == 2 and "is not installed" in done.stderr:
        cannot(done.stderr)
    rows: dict[str, Any] = {row["channel"]: row for row in json.loads(done.stdout)["channels"]}
    for name, operation in (("iperf3", "p2p_bandwidth"), ("fi_pingpong", "p2p_latency")):
        row = rows[name]
        assert row["bytes_per_s"] > 1e6 and (row["ci_low"], row["na"]) == (None, None) and row["flags"] == ["their_tool", "unverified"]
        assert (row["tool"]["operation"], row["tool"]["size_bytes"], row["tool"]["tool"]["name"]) == (operation, 1 << 20, name)
        assert row["limited_by"].startswith("loopback")
    assert "tool" not in rows["tcp_1"] and list(rows)[-2:] == ["iperf3", "fi_pingpong"]
