"""A folder's files, read without ever leaving it and without ever waiting."""

import os
from pathlib import Path

import pytest

from collbench.machine.files import Folder


def test_a_file_is_read_and_stripped_and_a_folder_listed_in_order(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys" / "b").write_text("1500\n")
    (tmp_path / "sys" / "a").write_text("")
    assert Folder(tmp_path).text("/sys/b") == "1500"
    assert Folder(tmp_path).names("/sys") == ("a", "b")


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert (Folder(tmp_path).text("/no"), Folder(tmp_path).names("/no"), Folder(tmp_path).real("/no")) == (None, (), None)


@pytest.mark.timeout(10)
def test_a_pipe_in_a_files_place_is_no_file_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mtu")
    assert Folder(tmp_path).text("/mtu") is None


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../../../../etc/hostname"])
def test_a_link_never_leaves_the_tree(tmp_path: Path, target: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "hostname").write_text("inside")
    (tmp_path / "link").symlink_to(target)
    assert Folder(tmp_path).text("/link") == "inside"
    assert Folder(tmp_path).real("/link") == "/etc/hostname"


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert (Folder(tmp_path).text("/a"), Folder(tmp_path).real("/a")) == (None, None)
