"""The digest of this build of collbench, and the software of hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from collbench import __version__
from collbench.launch import software
from collbench.launch import software as build

PACKAGE = Path(build.__file__).parents[1]


def package(folder: Path) -> Path:
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "inner" / "one.py").write_text("one = 1\n")
    (folder / "loop.c").write_text("int main;\n")
    (folder / "inner" / "__pycache__" / "one.pyc").write_bytes(b"compiled")
    return folder


def test_the_digest_is_the_same_in_every_folder(tmp_path: Path) -> None:
    here, there = package(tmp_path / "here"), package(tmp_path / "a" / "there")
    shutil.rmtree(there / "inner" / "__pycache__")
    (there / "_loop.so").write_bytes(b"compiled in another folder")
    (there / "_version.py").write_text("the same sources in a wheel")
    assert build.digest_of(here) == build.digest_of(there)


@pytest.mark.parametrize("change", ["content", "new file", "name", "C source"])
def test_a_changed_source_changes_the_digest(change: str, tmp_path: Path) -> None:
    here, there = package(tmp_path / "here"), package(tmp_path / "there")
    one = there / "inner" / "one.py"
    if change == "content":
        one.write_text("one = 2\n")
    elif change == "new file":
        (there / "two.py").touch()
    elif change == "name":
        one.rename(there / "inner" / "two.py")
    else:
        (there / "loop.c").write_text("int other;\n")
    assert build.digest_of(here) != build.digest_of(there)


def test_a_build_survives_json() -> None:
    own = build.own()
    assert build.read_build(own.as_json()) == own and str(own) == f"{__version__}+{build.digest_of(PACKAGE)}"


@pytest.mark.parametrize(
    "value", [0, None, [], [1, "0.1.0"], [1, "0.1.0", "\x1b[2J"], [1, "0" * 41, "a"], [True, "1", "a"], [-1, "1", "a"], ["1", "1", "a"]]
)
def test_anything_else_is_not_a_build(value: object) -> None:
    assert build.read_build(value) is None


def test_a_mismatch_names_both_hosts_and_builds() -> None:
    old, new = build.Build(1, "0.1.0", "abc"), build.Build(2, "0.2.0", "def")
    said = build.mismatch(1, "n2", old, "n1", new)
    assert all(value in said for value in ("rank 1 (n2)", "0.1.0+abc", "rank 0 (n1)", "0.2.0+def"))
    said = build.mismatch(1, "n2", None, "n1", new)
    assert all(value in said for value in ("rank 1 (n2)", "older", "rank 0 (n1) 0.2.0+def"))


def test_software_that_differs_is_named_with_its_hosts() -> None:
    same = {"python": "3.11.2", "torch": "2.13.0"}
    groups = software.grouped([("n1", same), ("n2", same), ("n3", {"python": "3.12.1"})])
    assert groups == [{"hosts": ["n1", "n2"], **same}, {"hosts": ["n3"], "python": "3.12.1"}]
    assert software.differing(groups) == {
        "python": {"3.11.2": ["n1", "n2"], "3.12.1": ["n3"]},
        "torch": {"2.13.0": ["n1", "n2"], "missing": ["n3"]},
    }


def test_equal_hosts_have_no_difference() -> None:
    groups = software.grouped([("n1", {"python": "3.11.2"}), ("n1", {"python": "3.11.2"}), ("n2", {"python": "3.11.2"})])
    assert groups == [{"hosts": ["n1", "n2"], "python": "3.11.2"}] and software.differing(groups) == {}
