"""`collbench report DIR --serve`: what it shows, and that nothing else is reachable."""

import http.client
import io
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from urllib.parse import urlencode

import pytest

from collbench.errors import UsageError
from collbench.plugins.serve.folder import served_runs
from collbench.plugins.serve.server import RunServer, index, serve
from collbench.report.html import page
from collbench.report.material import Material
from collbench.report.run_list import runs_below
from collbench.results.reader import read_run
from tests.cli.command import PROGRAM, environment, run_here
from tests.results.rows import make_row, store

pytestmark = pytest.mark.system

Get = Callable[..., tuple[int, str]]


def folder_of_runs(path: Path) -> Path:
    store(path / "night-1", [make_row()], command=["collbench", "allreduce"], started_utc="2026-11-01T00:00:00+00:00", exit_code=0)
    store(path / "night <2>", [make_row()], command=["collbench", "run"], started_utc="2026-11-02T00:00:00+00:00", exit_code=0)
    (path / "secret.txt").write_text("secret")
    (path / "empty").mkdir()
    other = store(path.parent / "other", [make_row()], exit_code=0)
    (path / "outside").symlink_to(other)
    store(path / "linked", [make_row()], exit_code=0)
    (path / "linked" / "events.jsonl").unlink(missing_ok=True)
    (path / "linked" / "events.jsonl").symlink_to(other / "run.json")
    return path


@pytest.fixture
def get(tmp_path: Path) -> Iterator[Get]:
    """Return (status, text) of a request to a server of two runs."""
    with RunServer(folder_of_runs(tmp_path / "runs"), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        def answer(path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
            connection.endheaders()
            reply = connection.getresponse()
            assert reply.getheader("Server") == "collbench"
            text = reply.read().decode()
            connection.close()
            return reply.status, text

        yield answer
        server.shutdown()
        thread.join()


def test_the_index_leads_to_pages_and_a_search_selects_runs(get: Get) -> None:
    status, text = get("/")
    addresses = re.findall(r'href="(/run/[^"]+)"', text)
    assert (status, addresses) == (200, ["/run/night%20%3C2%3E", "/run/night-1"])
    assert "night &lt;2&gt;" in text and "night <2>" not in text
    for address in addresses:
        status, page = get(address)
        assert (status == 200 and "allreduce on 1 node" in page) or "allreduce on" in page
        assert 'class="links"' not in page  # raw files are not reachable
    assert re.findall(r'href="/run/([^"]+)"', get("/?q=NIGHT-1+allreduce")[1]) == ["night-1"]
    status, text = get("/?q=%3Cscript%3E")
    assert status == 200 and "0 of 2 runs" in text and "<script>" not in text


def test_the_index_contains_neither_a_script_nor_the_library_of_charts(tmp_path: Path) -> None:
    text = index(tmp_path, [])
    assert "<script" not in text and ".uplot" not in text and "Leon Sorokin" not in text


def points(text: str) -> int:
    return sum(path.count("M") for path in re.findall(r'data-mark="runs"><path[^>]* d="([^"]*)"', text))


def test_the_trend_is_of_the_best_figure_of_each_operation(tmp_path: Path) -> None:
    runs = served_runs(folder_of_runs(tmp_path / "runs"), {}, 500)
    text = index(tmp_path, runs)
    name = "allreduce over nccl (cuda), 64 MiB, 4 ranks on 1 node: best bus bandwidth of each run"
    assert f'aria-label="{name}"' in text and points(text) == 2
    assert "<svg" not in index(tmp_path, runs[:1])


@pytest.mark.parametrize("changes", [
    {"ranks": 8}, {"nodes": 2}, {"backend": "mpi"}, {"device": "cpu"}, {"size_bytes": 32 << 20}, {"in_place": True}, {"dtype": "float16"},
    {"group": "hosts"}, {"operation": "broadcast"},
])  # fmt: skip
def test_runs_that_are_not_comparable_have_no_common_trend(tmp_path: Path, changes: dict[str, object]) -> None:
    for number, changed in enumerate([{}, changes, {}]):
        store(tmp_path / f"run-{number}", [make_row(**changed)], started_utc=f"2026-11-01T0{number}:00:00+00:00", exit_code=0)
    text = index(tmp_path, runs_below(tmp_path))
    assert (text.count("<svg"), points(text)) == (1, 2)
    assert ">00:00</text>" in text and ">02:00</text>" in text and ">01:00</text>" not in text  # of one day the times are shown


def test_runs_on_other_hosts_have_no_common_trend(tmp_path: Path) -> None:
    for number, hosts in enumerate([["a", "b"], ["c", "d"], ["b", "a"], ["c", "d"]]):
        store(tmp_path / f"run-{number}", [make_row()], hosts=hosts, started_utc=f"2026-11-0{number + 1}T00:00:00+00:00", exit_code=0)
    text = index(tmp_path, runs_below(tmp_path))
    assert (text.count("<svg"), points(text)) == (2, 4)
    assert ", a, b</h3>" in text and ", c, d</h3>" in text


def test_each_backend_has_its_trend_also_if_the_faster_one_changes(tmp_path: Path) -> None:
    for number in (1, 2):
        rows = [make_row(backend=name, busbw_bytes_per_s=rate * 1e9) for name, rate in (("mpi", 10 + number), ("gloo", 14 - number))]
        store(tmp_path / f"run-{number}", rows, started_utc=f"2026-11-0{number}T00:00:00+00:00", exit_code=0)
    text = index(tmp_path, runs_below(tmp_path))
    assert (text.count("<svg"), points(text)) == (2, 4)
    assert re.findall("<p>Last (.*?) GB/s; best (.*?) GB/s in (.*?)[.]</p>", text) == [
        ("12.0", "12.0", "run-2"), ("12.0", "13.0", "run-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(("starts", "labels"), [
    (["11-01T00:00", "11-02T00:00"], ["11-01", "11-02"]), (["11-01T10:00", "11-01T11:30"], ["10:00", "11:30"]),
    (["11-01T10:00", "11-01T11:30", "11-02T10:00"], ["11-01 10:00", "11-01 11:30", "11-02 10:00"]),
])  # fmt: skip
def test_labels_distinguish_the_runs(starts: list[str], labels: list[str], tmp_path: Path) -> None:
    for number, start in enumerate(starts):
        store(tmp_path / f"run-{number}", [make_row()], started_utc=f"2026-{start}:00+00:00", exit_code=0)
    text = index(tmp_path, runs_below(tmp_path))
    assert re.findall(r">(\d\d[-:]\d\d(?: \d\d:\d\d)?)</text>", text) == labels


def test_each_run_has_the_badge_of_its_page(tmp_path: Path) -> None:
    store(tmp_path / "good", [make_row()], exit_code=0)
    store(tmp_path / "wrong", [make_row(wrong=7)], exit_code=0)
    store(tmp_path / "nothing", [], exit_code=0)
    with RunServer(tmp_path, 0) as server:
        text = server.answer("/", "").text
        badges = dict(re.findall(r'<a href="/run/(\w+)">.*?</th>\s*<td data-head="verdict">(.*?)</td>', text, re.DOTALL))
        for name in ("good", "wrong"):
            looks = re.search(r'<p class="(badge \w+)">(.*?)</p>', server.answer(f"/run/{name}", "").text)
            assert looks is not None and badges[name] == f'<span class="{looks[1]}">{looks[2]}</span>'
        assert badges["nothing"] == "–" and badges["good"] != badges["wrong"]
        rmtree(tmp_path / "good")
        store(tmp_path / "good", [make_row(wrong=7)], exit_code=0)
        assert badges["wrong"] in server.answer("/", "").text.partition("/run/good")[2].partition("</tr>")[0]


def test_only_served_pages_lead_to_the_index_compare_with_the_oldest_and_refuse_other_methods(get: Get, tmp_path: Path) -> None:
    names = re.findall(r'<input type="checkbox" name="run" value="([^"]+)"', get("/")[1])
    assert names == ["night%20%3C2%3E", "night-1"]
    status, text = get(f"/compare?{urlencode([('run', name) for name in names])}")
    assert status == 200 and "night &lt;2&gt; against night-1, the baseline" in text and "<2>" not in text
    back = '<a class="index" href="/">All runs</a>'
    assert back in text and 'class="links"' not in text
    assert back in get("/run/night-1")[1] and back not in get("/")[1]
    material = Material([read_run(tmp_path / "runs" / "night-1")], tmp_path / "page.html")
    assert 'class="index"' not in page.html(material)
    assert get("/", host="evil.example")[0] == 403
    assert get("/", method="POST")[0] == get("/", method="PUT")[0] == get("/", method="DELETE")[0] == 501
    assert get("/", method="HEAD") == (200, "")


@pytest.mark.parametrize(("query", "status"), [
    ("", 400), ("?run=night-1", 400), ("?run=night-1&run=night-1", 400), ("?" + "&".join(f"run={number}" for number in range(10)), 400),
    ("?run=night-1&run=nothing", 404), ("?run=night-1&run=..", 404), ("?run=night-1&run=..%2fruns%2fnight-1", 404),
    ("?run=night-1&run=%252e%252e", 404), ("?run=night-1&run=outside", 404), ("?run=night-1&run=secret.txt", 404),
    ("?run=night-1&run=%2500", 404), ("?run=night-1&run=empty", 404),
])  # fmt: skip
def test_nothing_but_runs_of_the_folder_is_compared(get: Get, query: str, status: int) -> None:
    found, text = get(f"/compare{query}")
    assert found == status and "<" not in text
    assert get(f"/compare{query}", host="evil.example")[0] == 403


def test_text_of_a_run_is_text_of_the_index(tmp_path: Path) -> None:
    for number in (1, 2):
        rows = [make_row(operation="<b>\u202e", backend="<i>")]
        store(tmp_path / f"run-{number}", rows, command=["collbench", "<script>alert(1)</script>\x1b[2J"], exit_code=0)
    text = index(tmp_path, runs_below(tmp_path))
    assert text.count("&lt;script&gt;alert(1)") == 2 and "&lt;b&gt;" in text
    assert not re.search(r"<script|<b>|<i>|\u202e|\x1b", text)


@pytest.mark.parametrize("path", [
    "/secret.txt", "/run/", "/run/.", "/run/..", "/run/../secret.txt", "/run/%2e%2e/secret.txt", "/run/%2e%2e%2fsecret.txt",
    "/run/night-1/", "/run/night-1/run.json", "/run/night-1%2frun.json", "/run/%00", "/run/%ff", "//etc/passwd", "/etc/passwd",
    "/run/empty", "/run/night-1%00", "/index.html", "/runs/night-1", "/run//night-1", "http://[", "/run/outside", "/run/linked", "?q=x",
])  # fmt: skip
def test_nothing_else_is_reachable(get: Get, path: str) -> None:
    assert get(path) == (404, "The run is not in this folder.")


def test_later_and_linked_runs_are_served(tmp_path: Path) -> None:
    with RunServer(folder_of_runs(tmp_path / "runs"), 0) as server:
        assert len(server.runs()) == 2
        store(tmp_path / "runs" / "night-3", [make_row()], exit_code=0)
        assert len(server.runs()) == 3
    folder = folder_of_runs(tmp_path / "second" / "runs")
    (folder / "newest").symlink_to("night-1")
    with RunServer(folder, 0) as server:
        assert {run.path.name for run in server.runs()} == {"night-1", "night <2>", "newest"}
        assert server.answer("/run/newest", "").status == 200


def test_of_a_huge_folder_the_newest_runs_are_listed_and_all_have_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collbench.plugins.serve.server._MOST_RUNS", 2)
    for number in range(4):
        folder = store(tmp_path / f"run-{number}", [make_row()], exit_code=0)
        os.utime(folder / "run.json", (number, number))
    with RunServer(tmp_path, 0) as server:
        page = server.answer("/", "")
        assert sorted(re.findall(r'href="/run/([^"]+)"', page.text)) == ["run-2", "run-3"] and page.status == 200
        assert "older runs than the newest 2 are not listed" in page.text
        assert server.answer("/run/run-0", "").status == 200


def test_a_browser_that_goes_away_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunServer(folder_of_runs(tmp_path / "runs"), 0) as server:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            server.handle_error(None, None)
        assert capsys.readouterr().err == ""
        try:
            raise RuntimeError("a\x1b[2J page")
        except RuntimeError:
            server.handle_error(None, None)
        assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_vanishes_is_one_sentence(tmp_path: Path) -> None:
    folder = folder_of_runs(tmp_path / "runs")
    with RunServer(folder, 0) as server:
        folder.rename(tmp_path / "gone")
        page = server.answer("/", "")
        assert page.status == 404 and page.text.startswith("no run in ")


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run in"):
        serve(tmp_path, 0, io.StringIO())
    folder = folder_of_runs(tmp_path / "runs")
    with RunServer(folder, 0) as server, pytest.raises(UsageError, match=f"--port {server.server_port} cannot be used"):
        serve(folder, server.server_port, io.StringIO())
    for options in (("--port", "70000", "--serve"), ("--port", "80"), ("--serve", "--html", "x.html"), ("--serve", "other")):
        done = run_here(tmp_path, "report", str(tmp_path), *options)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    line = [*PROGRAM, "report", str(folder_of_runs(tmp_path / "runs")), "--serve", "--port", "0"]
    process = subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert re.search(r"2 runs of .*: http://127\.0\.0\.1:\d+/ \(Ctrl\+C ends\)", process.stdout.readline())
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
