"""Files that a report writes: in one step, or with a sentence that names the reason."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.report.writers import STDOUT, Outputs, write_whole


def test_a_file_is_replaced_as_a_whole_and_a_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, "line\n", "--html")
    assert link.is_symlink() and real.read_bytes() == b"line\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


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
    with pytest.raises(UsageError, match="--csv and --markdown "):
        Outputs(csv=STDOUT, markdown=STDOUT).check()
    with pytest.raises(UsageError, match="--html "):
        Outputs(html=STDOUT).check()
    with pytest.raises(UsageError, match="--openmetrics "):
        Outputs(openmetrics=STDOUT).check()


def test_a_link_that_waits_where_the_draft_goes_leads_nowhere(tmp_path: Path) -> None:
    other, draft = tmp_path / "other", tmp_path / f".page.{os.getpid()}"
    other.write_text("another program's")
    draft.symlink_to(other)
    write_whole(tmp_path / "page", "ours", "--html")
    assert (other.read_text(), (tmp_path / "page").read_text(), draft.is_symlink()) == ("another program's", "ours", False)
