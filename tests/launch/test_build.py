"""The digest of this build of collbench, and the software of hosts."""

import shutil
from pathlib import Path

import pytest

from collbench import __version__
from collbench.launch import software

PACKAGE = Path(software.__file__).parents[1]


def package(folder):
    (folder / "inner" / "__pycache__").mkdir(parents=True)
    (folder / "inner" / "one.py").write_text("one = 1\n")
    (folder / "loop.c").write_text("int main;\n")
    (folder / "inner" / "__pycache__" / "one.pyc").write_bytes(b"compiled")
    return folder


def test_the_digest_is_the_same_in_every_folder(tmp_path):
    here, there = package(tmp_path / "here"), package(tmp_path / "a" / "there")
    shutil.rmtree(there / "inner" / "__pycache__")
    (there / "_loop.so").write_bytes(b"compiled in another folder")
    (there / "_version.py").write_text("the same sources in a wheel")
    assert software.digest_of(here) == software.digest_of(there)


CHANGES = {
    "content": lambda package: (package / "inner/one.py").write_text("one = 2\n"), "new file": lambda package: (package / "two.py").touch(),
    "name": lambda package: (package / "inner/one.py").rename(package / "inner/two.py"),
    "C source": lambda package: (package / "loop.c").write_text("int other;\n"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_source_changes_the_digest(change, tmp_path):
    here, there = package(tmp_path / "here"), package(tmp_path / "there")
    change(there)
    assert software.digest_of(here) != software.digest_of(there)


def test_a_build_survives_json():
    own = software.own()
    assert software.read_build(own.as_json()) == own and str(own) == f"{__version__}+{software.digest_of(PACKAGE)}"


@pytest.mark.parametrize(
    "value", [0, None, [], [1, "0.1.0"], [1, "0.1.0", "\x1b[2J"], [1, "0" * 41, "a"], [True, "1", "a"], [-1, "1", "a"], ["1", "1", "a"]]
)
def test_anything_else_is_not_a_build(value):
    assert software.read_build(value) is None


def test_software_that_differs_is_named_with_its_hosts():
    same = {"python": "3.11.2", "torch": "2.13.0"}
    groups = software.grouped([("n1", same), ("n2", same), ("n3", {"python": "3.12.1"})])
    assert groups == [{"hosts": ["n1", "n2"], **same}, {"hosts": ["n3"], "python": "3.12.1"}]
    torch = {"2.13.0": ["n1", "n2"], "missing": ["n3"]}
    assert software.differing(groups) == {"python": {"3.11.2": ["n1", "n2"], "3.12.1": ["n3"]}, "torch": torch}
    equal = software.grouped([(host, {"python": "3.11.2"}) for host in ("n1", "n1", "n2")])
    assert equal == [{"hosts": ["n1", "n2"], "python": "3.11.2"}] and software.differing(equal) == {}
