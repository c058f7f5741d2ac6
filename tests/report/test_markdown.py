"""Markdown has the content of the table, and text from a file is never markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from collbench.analysis.launches import read_all
from collbench.report.frame import escaped, escaped_line, items, markdown_table
from collbench.report.material import Material
from collbench.report.runs import markdown_text
from collbench.results.row import Row
from tests.results.rows import make_row, make_times, not_measured, store

EVIL = "<script>alert(1)</script> [x](javascript:y) ![i](http://z) `c` *b* _i_ ~~s~~ $m$ |a| https://e.org www.e.org @team \u202e\x1b[31m"
_OWN = {"root", "inline", "text", "text_special", "html_inline", "paragraph_open", "paragraph_close"}


def written(*folders: Path) -> str:
    return markdown_text(Material(read_all(folders), Path()))


def kinds(text: str) -> set[str]:
    """What GitHub's Markdown would make of it: everything but letters has a kind of its own."""
    reader = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"])
    tokens = reader.parse(text)
    return {each.type for token in tokens for each in (token, *(token.children or ()))}


def test_peaks_findings_and_rows(tmp_path: Path) -> None:
    rows = [
        make_row(64 << 20, flags=("drift",)),
        make_row(8, busbw_bytes_per_s=1e9, time_s=make_times(3e-6)),
        not_measured("no memory", size_bytes=16),
    ]
    text = written(store(tmp_path / "run", rows))
    lines = text.splitlines()
    assert lines[0] == "# collbench report"
    peak = "| allreduce | nccl | ? 42.0 of 50.0 GB/s (84 %) limited by NIC 4×100 Gb/s (ring) · drift | 64 MiB | 3.000 µs at 8 B |"
    assert peak in lines
    assert any(line.startswith("- doubtful: drift (1 of 3 cases") for line in lines)
    assert "| allreduce | 16 B | nccl | float32 | sum | n/a (no memory) |  |  |  |  |  |  |  |" in lines
    assert lines.count("## run") == 1


def test_peaks_have_a_column_for_what_distinguishes_them(tmp_path: Path) -> None:
    lines = written(store(tmp_path / "run", [make_row(), make_row(mode="batched")])).splitlines()
    assert "| operation | backend | mode | bus bandwidth | at | smallest message |" in lines
    assert [line.split(" | ")[2] for line in lines if " limited by NIC" in line] == ["batched", "isolated"]


def test_several_runs_are_compared_and_their_differences_reported(tmp_path: Path) -> None:
    sides = []
    for name, by in (("before", 1.0), ("after", 1.2)):
        for launch in range(3):
            row = make_row(8, time_s=make_times(1e-6 * by * (1 + 0.001 * launch)))
            store(tmp_path / name / f"launch-{launch + 1}", [row], allocation_id=name, backends={"nccl": {"nccl": f"2.{round(10 * by)}"}})
        sides.append(tmp_path / name)
    lines = written(*sides).splitlines()
    assert "## after against before" in lines
    assert "slower +20.0 % (" in next(line for line in lines if line.startswith("| allreduce | 8 B |") and "slower" in line)
    assert "- A → B: software nccl nccl: 2.10 → 2.12" in lines


def test_nothing_to_complain_of_and_nothing_in_common_are_reported(tmp_path: Path) -> None:
    text = written(store(tmp_path / "a", [make_row(8)]), store(tmp_path / "b", [make_row(8, ranks=8, dtype="int8")]))
    assert "- no case in common: dtype float32 → int8, ranks 4 → 8" in text.splitlines()
    assert "- No findings, no flags, nothing missing." in written(store(tmp_path / "run", [make_row()]))


def test_a_long_table_is_cut_which_is_reported_and_of_several_runs_each_gets_its_share(tmp_path: Path) -> None:
    sides = [store(tmp_path / name, [make_row(8 * number) for number in range(1, 300)]) for name in ("before", "after")]
    alone, both = written(sides[0]), written(*sides)
    assert "The first 200 of 299 rows; `collbench report … --csv FILE` has all." in alone.splitlines()
    assert "The worst 66 of 299 cases; `collbench compare … --format csv` has all." in both.splitlines()
    assert both.count("The first 66 of 299 rows") == 2
    assert max(len(alone), len(both)) < 65_536


@pytest.mark.parametrize("place", ["backend", "flags", "na"])
def test_untrusted_text_is_letters(place: str, tmp_path: Path) -> None:
    row: Row = make_row(8, backend=EVIL) if place == "backend" else make_row(8, flags=(EVIL,)) if place == "flags" else not_measured(EVIL)
    text = written(store(tmp_path / "run", [row], hosts=[EVIL], command=[EVIL]), store(tmp_path / EVIL.replace("/", "-"), [row]))
    assert not kinds(text) & {"link_open", "image", "html_block", "em_open", "strong_open", "s_open", "fence", "code_block", "code_inline"}
    assert "<script" not in text and "http://" not in text and "www." not in text and "\u202e" not in text and "\x1b" not in text


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
