"""A site file: what is the same for every job, by partition; strict about keys, partitions and values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collbench.deploy.job import of_site, together
from collbench.deploy.kinds import settings
from collbench.errors import UsageError

GOOD = """schema = 1
[defaults]
account = "infra"
minutes = 60
env = ["A=1", "B=1"]
[partitions.h100]
gpus-per-node = 8
account = "gpu"
env = "A=2"
[partitions."cpu long"]
nodes = "4"
"""


def site(folder: Path, text: str | bytes) -> Path:
    file = folder / "site.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def of(folder: Path, text: str | bytes, partition: str | None = None, *, named: bool = False) -> dict[str, object]:
    return dict(of_site(site(folder, text), partition, settings(), named=named))


def refusal(folder: Path, text: str | bytes, partition: str | None = None, *, named: bool = False) -> str:
    with pytest.raises(UsageError) as refused:
        of(folder, text, partition, named=named)
    said = str(refused.value)
    assert "\n" not in said
    return said.replace(f"{folder}/", "")


def test_the_partition_wins_over_the_defaults_and_adds_to_what_may_be_said_twice(tmp_path: Path) -> None:
    assert of(tmp_path, GOOD) == {"account": "infra", "minutes": 60, "env": ("A=1", "B=1")}
    assert of(tmp_path, GOOD, "h100") == {"account": "gpu", "minutes": 60, "env": ("A=1", "B=1", "A=2"), "gpus-per-node": 8}
    assert of(tmp_path, GOOD, "cpu long") == {"account": "infra", "minutes": 60, "env": ("A=1", "B=1"), "nodes": 4}


def test_the_last_word_holds() -> None:
    assert together({"nodes": 2, "env": ("A=1",)}, {}, {"nodes": 3, "env": ("A=2",)}, {"name": "x"}) == {
        "nodes": 3,
        "env": ("A=1", "A=2"),
        "name": "x",
    }


def test_unknown_partitions(tmp_path: Path) -> None:
    assert refusal(tmp_path, GOOD, "h200") == ("site.toml has no partition 'h200': choose from h100, cpu long, or add [partitions.h200]")
    assert of(tmp_path, "schema = 1\n", "h100") == {}  # Slurm's partition, of which the file says nothing
    assert refusal(tmp_path, "schema = 1\n", "h100", named=True) == "site.toml has no partition 'h100': add [partitions.h100]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schema = 1\n[defaults]\nacount = 'x'\n", "site.toml: [defaults] key 'acount' is unknown: did you mean account?"),
        ("schema = 1\n[partitions.x]\nnode = 1\n", "site.toml: [partitions.x] key 'node' is unknown: did you mean nodes?"),
        ('schema = 1\n[defaults]\n"a\\nb" = 1\n', "site.toml: [defaults] key 'a\\nb' is unknown: choose from "),
        ("schema = 1\nnodes = 2\n", "site.toml: 'nodes' is unknown: there are schema, [defaults] and [partitions.NAME]"),
        ("[defaults]\n", "site.toml: schema = 1 is missing: write it in the first line"),
        ("schema = 2\n", "site.toml: schema = 1 is missing: write it in the first line"),
        ("schema = 1\ndefaults = 3\n", "site.toml: defaults has to be a table: write [defaults]"),
        ("schema = 1\npartitions = []\n", "site.toml: partitions has to be a table: write [partitions.NAME]"),
        ("schema = 1\n[partitions]\nh100 = 8\n", "site.toml: [partitions.h100] has to be a table"),
        ("schema = 1\n[defaults]\nnodes = 0\n", "site.toml: [defaults] nodes: '0' is not a whole number from 1 to 100000"),
        ("schema = 1\n[partitions.x]\nnodes = -3\n", "site.toml: [partitions.x] nodes: '-3' is not a whole number from 1 to 100000"),
        ("schema = 1\n[defaults]\nnodes = 1.5\n", "site.toml: [defaults] nodes = 1.5 is neither a text nor a whole number"),
        ("schema = 1\n[defaults]\nnodes = true\n", "site.toml: [defaults] nodes = True is neither a text nor a whole number"),
        ("schema = 1\n[defaults]\nnodes = [2]\n", "site.toml: [defaults] nodes = [2] is neither a text nor a whole number"),
        ("schema = 1\n[defaults]\nname = 2026-01-01\n", "site.toml: [defaults] name = datetime.date(2026, 1, 1) is neither a text nor"),
        ("schema = 1\n[defaults]\nenv = [[]]\n", "site.toml: [defaults] env = [[]] is neither a text nor a whole number, nor a list"),
        ("schema = 1\n[defaults]\nenv = ['A']\n", "site.toml: [defaults] env: 'A' is not NAME=VALUE"),
        ("schema = 1\n[defaults]\nimage = 'a b'\n", "site.toml: [defaults] image: 'a b' is not an image"),
        ("schema = 1\n[defaults]\nruns = \"a\\u0007\"\n", "site.toml: [defaults] runs: 'a\\x07' has characters that cannot be printed"),
        ("schema = 1\n[defaults\n", "--site site.toml is no TOML ("),
        ("schema = 1\nschema = 1\n", "--site site.toml is no TOML ("),
        (b"schema = 1 # \xff\n", "--site site.toml is no TOML ("),
        ("schema = 1\na = " + "[" * 5000, "--site site.toml is no TOML (it is nested too deeply): mend it there"),
        ("schema = " + "9" * 9999, "--site site.toml is no TOML ("),
        ("#" * (1 << 20) + "\n", "--site site.toml cannot be read (it is larger than 1 MiB): name a TOML file"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_sentence(text: str | bytes, said: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, text).startswith(said)


def test_a_mistake_in_another_partition_is_told_too(tmp_path: Path) -> None:
    assert "[partitions.b] key 'nods' is unknown" in refusal(tmp_path, "schema = 1\n[partitions.a]\n[partitions.b]\nnods = 1\n", "a")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("nowhere", "No such file or directory"), ("", "Is a directory"), ("pipe", "it is a pipe")):
        with pytest.raises(UsageError, match=rf"^--site {tmp_path / name} cannot be read \(.*{why}.*\): name a TOML file$"):
            of_site(tmp_path / name, None, settings())
