"""CSV, JSON, Markdown, OpenMetrics and the report of stored runs."""

import csv
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client.openmetrics.parser import text_string_to_metric_families as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families as as_text

from collbench.analysis.launches import read_all
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.frame import defused, escaped, escaped_line, items, markdown_table
from collbench.report.material import Material
from collbench.report.runs import markdown_text, openmetrics_text
from collbench.report.writers import STDOUT, Outputs, csv_columns, write_whole
from collbench.results.folder import RunFolder
from collbench.results.row import Times
from tests.report.golden import assert_golden, live, report_of
from tests.results.rows import make_row, make_times, not_measured, store

ROWS = [
    make_row(64 << 20, flags=("target_missed", "few_samples"), canary_s={"before": 1e-9, "after": None}, samples={"max_s": {"offset": 0}}),
    not_measured('no "bfloat16", sorry\nreally', backend="mpi"),
    make_row(8, backend="mpi", slowest_ranks={"count": 3}),
]


def records(text: str) -> list[dict[str, str]]:
    """A CSV text read back."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv() -> None:
    text = live(ROWS, "csv", run="run-1")
    assert_golden("rows.csv", text)
    assert all(line.endswith("\r") for line in text.removesuffix("\n").split("\n"))
    _, second, third = records(text)
    assert list(second) == csv_columns() and second["na"] == 'no "bfloat16", sorry?really'
    assert json.loads(third["slowest_ranks"]) == {"count": 3}


def test_json_is_what_cases_jsonl_holds_and_csv_keeps_both_values_and_why_a_case_stopped(tmp_path: Path) -> None:
    modes = [{"time_s": 2.3e-06, "share": 0.82}, {"time_s": 1.07e-05, "share": 0.18}]
    row = records(live([make_row(modes=modes, stopped="max_time", launches=5, n_eff=-1.5)], "csv", run="run-1"))[0]
    assert (json.loads(row["modes"]), row["stopped"], row["launches"], row["n_eff"]) == (modes, "max_time", "5", "-1.5")
    assert records(live([make_row()], "csv", run="run-1"))[0]["modes"] == ""
    path = store(tmp_path / "run", ROWS)
    assert live([*ROWS[1:]], "json", run="run-1").splitlines() == (path / "cells.jsonl").read_text().splitlines()[1:]
    assert live(ROWS, "json", run="run-1").isascii()


@pytest.mark.parametrize(("letters", "kept"), [(32_766, 32_766), (32_767, 32_766), (200_000, 32_766)])
def test_no_case_is_longer_than_a_spreadsheets(letters: int, kept: int) -> None:
    assert len(defused("x" * letters)) == kept
    assert len(defused("=" + "x" * letters)) == 32_767
    assert defused("x" * letters).endswith("…") is (letters > kept)


def test_a_report_is_ascending_in_size_for_any_order(tmp_path: Path) -> None:
    rows = [make_row(size, backend=backend) for size in (64, 8, 1024) for backend in ("mpi", "gloo")]
    out, err = report_of(store(tmp_path / "run", rows))
    lines = [line for line in out.splitlines() if line.endswith(" ok") or "float32" in line]
    found = [line.partition(" · ")[0] if "float32" in line else line.split()[:2] for line in lines]
    sizes = [["8", "B"], ["64", "B"], ["1", "KiB"]]
    assert found == ["allreduce over gloo", *sizes, "allreduce over mpi", *sizes]
    assert out.splitlines()[0] == "run (6 rows)"
    assert err == ""


def test_what_cannot_be_reported_is_refused_and_what_could_not_be_read_is_shown(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row()])
    with (path / "cells.jsonl").open("a") as file:
        file.write('{"operation": "all')
    out, err = report_of(path)
    assert err.startswith(f"{path}/cells.jsonl ends in the middle of line 2") and err.count("\n") == 1
    assert out.splitlines()[0] == "run (1 row)"
    with pytest.raises(UsageError, match=r"--csv \S+ .*\(Is a directory\)"):
        report_of(path, file=tmp_path)


def test_csv_to_a_file_to_stdout_and_of_several_runs(tmp_path: Path) -> None:
    one, two = store(tmp_path / "one", [make_row(64), make_row(8)]), store(tmp_path / "two", [make_row(16)])
    out, _ = report_of(one, two, file=tmp_path / "all.csv")
    assert "one (2 rows)" in out
    assert "\ntwo (1 row)" in out
    text = (tmp_path / "all.csv").read_bytes().decode()
    assert [(row["run"], row["size_bytes"]) for row in records(text)] == [("one", "8"), ("one", "64"), ("two", "16")]
    assert report_of(one, two, file=Path("-")) == (text, "")
    assert report_of(one, two, format="csv") == (text, "")


def test_every_format_prints_a_stored_run(tmp_path: Path) -> None:
    rank_map: list[Any] = [{"rank": 0, "host": "node0", "local_rank": 0, "pid": 77}, "junk"]
    path = store(tmp_path / "run", [make_row(16, launches=3), make_row(8, launches=3)], rank_map=rank_map)
    assert "Pid     77 on      node0" in report_of(path, format="nccl-tests")[0]
    assert [json.loads(line)["size_bytes"] for line in report_of(path, format="json")[0].splitlines()] == [8, 16]
    assert "within one launch" not in report_of(path)[0]


def test_an_unfinished_run_is_called_so(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row()])
    info = json.loads((path / "run.json").read_text())
    del info["finished_utc"]
    (path / "run.json").write_text(json.dumps(info))
    assert report_of(path)[0].startswith("run (1 row, not finished)\n")
    (path / "run.json").write_text(json.dumps({**info, "finished_utc": "2026-11-21T12:00:00.000Z", "exit_code": 130}))
    assert report_of(path)[0].startswith("run (1 row, not finished)\n"), "Ctrl-C"


# Files that a report writes: in one step, or with a sentence that names the reason.


def test_a_file_is_replaced_as_a_whole_and_a_link_stays_one_or_leads_nowhere(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, "line\n", "--html")
    assert link.is_symlink() and real.read_bytes() == b"line\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    other, draft = tmp_path / "other", tmp_path / f".page.{os.getpid()}"
    other.write_text("another program's")
    draft.symlink_to(other)
    write_whole(tmp_path / "page", "ours", "--html")
    assert (other.read_text(), (tmp_path / "page").read_text(), draft.is_symlink()) == ("another program's", "ours", False)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "through", "--html")
    reader.join(10)
    assert read == ["through"] and pipe.is_fifo()


def test_what_cannot_be_written_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--html .*/no/page .*\(No such file or directory\)"):
        write_whole(tmp_path / "no" / "page", "", "--html")
    with pytest.raises(UsageError, match="Is a directory"):
        write_whole(tmp_path, "", "--html")
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(UsageError, match=r"circle cannot be written \(.+\)"):
        write_whole(circle, "", "--html")
    assert list(tmp_path.iterdir()) == [circle]


def test_stdout_belongs_to_one() -> None:
    Outputs(csv=STDOUT, markdown=Path("a")).check()
    Outputs(csv=Path("a"), markdown=STDOUT, html=Path("b")).check()
    with pytest.raises(UsageError, match="--openmetrics "):
        Outputs(openmetrics=STDOUT).check()


def written(*folders: Path) -> str:
    return openmetrics_text(Material(read_all(folders), Path()))


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name the labels and values that both parsers find; they must agree."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in as_openmetrics(text):  # type: ignore[no-untyped-call]
        assert family.type == "gauge"
        found[family.name] = [(each.labels, each.value) for each in family.samples]
    assert {family.name: [(each.labels, each.value) for each in family.samples] for family in as_text(text)} == found
    return found


def test_a_row_with_all_its_labels(tmp_path: Path) -> None:
    row = make_row(1024, time_s=make_times(2e-6), hard_bound=Ceiling("network", 60e9, "NIC", "bound"), window=None, algorithm="tree")
    found = samples(written(store(tmp_path / "run", [row])))
    ((labels, time),) = found["collbench_time_seconds"]
    assert time == 2e-6
    assert labels == {
        "operation": "allreduce", "backend": "nccl", "device": "cuda", "dtype": "float32", "redop": "sum", "mode": "isolated",
        "placing": "out of place", "buffers": "fixed", "group": "all", "ranks": "4", "nodes": "1", "algorithm": "tree",
        "size_bytes": "1024",
    }  # fmt: skip
    single = {name: values[0][1] for name, values in found.items() if len(values) == 1}
    assert single["collbench_time_interval_low_seconds"] == pytest.approx(1.98e-6)
    assert single["collbench_busbw_bytes_per_second"] == 42e9
    assert single["collbench_of_ceiling_ratio"] == 0.84
    assert (single["collbench_measured"], single["collbench_doubtful"], single["collbench_wrong_elements"]) == (1, 0, 0)
    assert (single["collbench_samples"], single["collbench_launches"], single["collbench_run_complete"]) == (200, 1, 1)
    assert found["collbench_ceiling_bytes_per_second"][0][0]["limited_by"] == "NIC 4×100 Gb/s"
    assert found["collbench_hard_bound_bytes_per_second"][0][1] == 60e9


def test_what_is_unknown_has_no_sample_and_wrong_data_no_share_and_a_case_that_occurs_twice_is_one_series(tmp_path: Path) -> None:
    inf = float("inf")
    rows = [
        not_measured("no memory", size_bytes=8),
        make_row(16, time_s=Times(2e-6, None, None, 1e-6, 3e-6, inf, inf), percent_of_ceiling=None, wrong=None, busbw_bytes_per_s=inf),
        make_row(32, ranks=1, busbw_bytes_per_s=0.0),
    ]
    found = samples(written(store(tmp_path / "run", rows)))
    assert {labels["size_bytes"]: value for labels, value in found["collbench_measured"]} == {"8": 0, "16": 1, "32": 1}
    assert {labels["size_bytes"] for labels, _ in found["collbench_time_seconds"]} == {"16", "32"}
    assert [labels["size_bytes"] for labels, _ in found["collbench_time_interval_low_seconds"]] == ["32"]
    assert [labels["size_bytes"] for labels, _ in found["collbench_wrong_elements"]] == ["32"]
    assert "collbench_busbw_bytes_per_second" not in found
    found = samples(written(store(tmp_path / "wrong", [make_row(8, wrong=3), make_row(16), make_row(32, ranks=1, wrong=None)])))
    assert [labels["size_bytes"] for labels, _ in found["collbench_of_ceiling_ratio"]] == ["16"]
    assert [value for _, value in found["collbench_wrong_elements"]] == [3, 0]
    found = samples(written(store(tmp_path / "other", [make_row(8, time_s=make_times(1e-6)), make_row(8, time_s=make_times(2e-6))])))
    assert [value for _, value in found["collbench_time_seconds"]] == [2e-6]


def test_several_runs_have_their_names_and_their_ends(tmp_path: Path) -> None:
    done = store(tmp_path / "done", [make_row(8)])
    broken = RunFolder.create(tmp_path / "broken", "allreduce", {})
    broken.append(make_row(8), {})
    found = samples(written(done, broken.path))
    assert [labels["run"] for labels, _ in found["collbench_time_seconds"]] == ["done", "broken"]
    assert found["collbench_run_complete"] == [({"run": "done"}, 1), ({"run": "broken"}, 0)]
    assert [labels for labels, _ in found["collbench_run_finished_timestamp_seconds"]] == [{"run": "done"}]
    assert ({"severity": "broken_off"}, 1) in found["collbench_concerns"]
    assert ({"severity": "wrong_data"}, 0) in found["collbench_concerns"]


def test_hostile_names_stay_within_their_quotes(tmp_path: Path) -> None:
    evil = 'x"} 1\ncollbench_time_seconds{a="\\\u202e\ud800' + "y" * 500
    found = samples(written(store(tmp_path / "run", [make_row(8, backend=evil, ceiling=Ceiling(evil, 1e9, evil, evil))])))
    ((labels, _),) = found["collbench_time_seconds"]
    assert labels["backend"].startswith('x"} 1?collbench_time_seconds{a="\\?\ufffdy') and len(labels["backend"]) == 200


_OWN = {"root", "inline", "text", "text_special", "html_inline", "paragraph_open", "paragraph_close"}


def markdown_of(*folders: Path) -> str:
    return markdown_text(Material(read_all(folders), Path()))


def kinds(text: str) -> set[str]:
    """What GitHub's Markdown would make of it: everything but letters has a kind of its own."""
    reader = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"])
    tokens = reader.parse(text)
    return {each.type for token in tokens for each in (token, *(token.children or ()))}


def test_peaks_have_a_column_for_what_distinguishes_them(tmp_path: Path) -> None:
    lines = markdown_of(store(tmp_path / "run", [make_row(), make_row(mode="batched")])).splitlines()
    assert "| operation | backend | mode | bus bandwidth | at | smallest message |" in lines
    assert [line.split(" | ")[2] for line in lines if " limited by NIC" in line] == ["batched", "isolated"]


def test_several_runs_are_compared_and_their_differences_reported(tmp_path: Path) -> None:
    sides = []
    for name, by in (("before", 1.0), ("after", 1.2)):
        for launch in range(3):
            row = make_row(8, time_s=make_times(1e-6 * by * (1 + 0.001 * launch)))
            store(tmp_path / name / f"launch-{launch + 1}", [row], allocation_id=name, backends={"nccl": {"nccl": f"2.{round(10 * by)}"}})
        sides.append(tmp_path / name)
    lines = markdown_of(*sides).splitlines()
    assert "## after against before" in lines
    assert "slower +20.0 % (" in next(line for line in lines if line.startswith("| allreduce | 8 B |") and "slower" in line)
    assert "- A → B: software nccl nccl: 2.10 → 2.12" in lines
    assert not any(line.endswith(" has all.") for line in lines), "no table was cut"


def test_nothing_to_complain_of_and_nothing_in_common_are_reported(tmp_path: Path) -> None:
    text = markdown_of(store(tmp_path / "a", [make_row(8)]), store(tmp_path / "b", [make_row(8, ranks=8, dtype="int8")]))
    assert "- no case in common: dtype float32 → int8, ranks 4 → 8" in text.splitlines()
    assert "- No findings, no flags, nothing missing." in markdown_of(store(tmp_path / "run", [make_row()]))


def test_a_long_table_is_cut_which_is_reported_and_of_several_runs_each_gets_its_share(tmp_path: Path) -> None:
    sides = [store(tmp_path / name, [make_row(8 * number) for number in range(1, 300)]) for name in ("before", "after")]
    alone, both = markdown_of(sides[0]), markdown_of(*sides)
    assert "The first 200 of 299 rows; `collbench report … --csv FILE` has all." in alone.splitlines()
    assert "The worst 66 of 299 cases; `collbench compare … --format csv` has all." in both.splitlines()
    assert both.count("The first 66 of 299 rows") == 2
    assert max(len(alone), len(both)) < 65_536


@pytest.mark.parametrize(
    ("text", "kept"), [("# h", "\\# h"), ("- i", "\\- i"), ("> q", "\\> q"), ("1. n", "1\\. n"), ("===", "\\==="), ("1.5 µs", "1.5 µs")]
)
def test_a_line_opens_no_block(text: str, kept: str) -> None:
    assert escaped_line(text) == kept


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_is_nothing_but_text(text: str) -> None:
    own = {"bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"}
    assert kinds("\n".join(items([text]))) <= own | _OWN
    cases = {f"{part}_{side}" for part in ("table", "thead", "tbody", "tr", "th", "td") for side in ("open", "close")}
    assert kinds("\n".join(markdown_table(["a", "b"], [[text, "b"]], [False, True]))) <= cases | _OWN
    assert "\n" not in escaped(text)
