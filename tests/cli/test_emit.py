"""collbench emit: what is typed, what a site says, where the file goes; and every mistake as one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collbench.deploy.kinds import kinds
from tests.cli.command import Finished, environment, one_sentence, run_here

INNER = ("--", "allreduce", "--sizes", "1K-1G")


def emit(folder: Path, *words: str, env: dict[str, str] | None = None, inner: tuple[str, ...] = INNER) -> Finished:
    return run_here(folder, "emit", *words, *inner, env=env)


def text(folder: Path, *words: str, env: dict[str, str] | None = None, inner: tuple[str, ...] = INNER) -> str:
    done = emit(folder, *words, env=env, inner=inner)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def refused(folder: Path, *words: str, env: dict[str, str] | None = None, inner: tuple[str, ...] = INNER) -> str:
    return one_sentence(emit(folder, *words, env=env, inner=inner))


class TestTheJob:
    def test_options_may_stand_on_either_side_of_the_kind(self, tmp_path: Path) -> None:
        assert text(tmp_path, "slurm", "--nodes", "4") == text(tmp_path, "--nodes", "4", "slurm")
        assert "#SBATCH --nodes=4\n" in text(tmp_path, "slurm", "--nodes", "4")

    def test_every_option_has_its_variable_and_what_is_typed_wins(self, tmp_path: Path) -> None:
        env = {"COLLBENCH_NODES": "5", "COLLBENCH_GPUS_PER_NODE": "8", "COLLBENCH_ENV": "A=1"}
        found = text(tmp_path, "slurm", "--nodes", "4", env=env)
        assert found == text(tmp_path, "slurm", "--nodes", "4", "--gpus-per-node", "8", "--env", "A=1")

    def test_of_an_option_that_is_given_twice_the_last_holds_but_variables_add_up(self, tmp_path: Path) -> None:
        assert text(tmp_path, "reframe", "--nodes", "4", "--nodes", "3") == text(tmp_path, "reframe", "--nodes", "3")
        found = text(tmp_path, "reframe", "--env", "A=1", "--env", "B=2", "--env", "A=3")
        assert re.findall(r"export (\w=\d)", found) == ["A=3", "B=2"]

    def test_words_after_the_dashes_are_the_command_and_nothing_else(self, tmp_path: Path) -> None:
        found = text(tmp_path, "reframe", inner=("--", "allreduce", "--seed", "4", "--allocation", "{{ x }} $(id) #"))
        assert '"--seed",\n        "4",\n        "--allocation",\n        "\'{{ x }} $(id) #\'",\n' in found
        assert "COLLBENCH" not in text(tmp_path, "reframe", env={"COLLBENCH_SEED": "3"})


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("", "the following arguments are required: KIND (see `collbench emit --help`)"),
            ("slrum", "unknown kind 'slrum': did you mean slurm?"),
            ("xyz", f"unknown kind 'xyz': choose from {', '.join(kinds())}"),
            ("slurm --nodes 0", "--nodes: '0': not a whole number from 1 to 100000"),
            ("slurm --nodes -1", "--nodes: '-1': not a whole number from 1 to 100000"),
            ("slurm --nodes=", "--nodes: '': not a whole number from 1 to 100000"),
            ("slurm --node 2", "emit has no option --node: did you mean --nodes? (see `collbench emit --help`)"),
            ("slurm --sizes 8", "emit has no option --sizes"),
            ("ansible --image a:b", "--image does not apply to emit ansible: omit it (see `collbench emit --help`)"),
            ("ansible --partition x", "--partition does not apply to emit ansible: omit it (see `collbench emit --help`)"),
            ("slurm --partition=", "--partition: '' is not a valid name: use letters, digits and -_.+, with a letter or digit first"),
            ("slurm --name a/b", "--name: 'a/b' is not a valid name: use letters, digits and -_.+, with a letter or digit first"),
            ("slurm --env A", "--env: 'A' is not NAME=VALUE, with a name of letters, digits and _"),
            ("slurm --site nowhere", "--site nowhere: cannot be read (No such file or directory): use a TOML file"),
            ("ansible --submit", "--submit is not supported by emit ansible: write the file with --write, then run: ansible"),
            ("slurm slurm", "'slurm' is an unexpected argument (see `collbench emit --help`)"),
        ],
    )  # fmt: skip
    def test_in_front_of_the_dashes(self, words: str, said: str, tmp_path: Path) -> None:
        assert refused(tmp_path, *words.split()).startswith(said)

    @pytest.mark.parametrize("image", ["my image", "it's", 'a"b', "a\nb", ""])
    def test_images_with_blanks_and_quotes(self, image: str, tmp_path: Path) -> None:
        said = refused(tmp_path, "slurm", f"--image={image}")
        assert said.startswith(f"--image: {image!r} is not a valid image: use registry/name:tag") and said.endswith(
            "without blanks and quotes"
        )

    @pytest.mark.parametrize(
        ("inner", "said"),
        [
            ((), "missing command: write it after --, as in `collbench emit slurm --nodes 2 -- allreduce`"),
            (("--",), "missing command: write it after --"),
            (("--", "allredcue"), "after --: 'allredcue' cannot be started on many nodes: "),
            (("--", "gate", "--baseline", "x", "y"), "after --: 'gate' cannot be started on many nodes: "),
            (("--", "emit", "slurm"), "after --: 'emit' cannot be started on many nodes: "),
            (("--", "collbench", "allreduce"), "after --: 'collbench' cannot be started on many nodes: "),
            (("--", "allreduce", "--sise", "8"), "after --: allreduce has no option --sise: did you mean --sizes? (see `coll"),
            (("--", "allreduce", "8"), "after --: '8' is an unexpected argument (see `collbench allreduce --help`)"),
            (("--", "allreduce", "--max-time", "0"), "after --: argument --max-time: '0' is not a number above 0"),
            (("--", "allreduce", "--ranks", "8"), "after --: --ranks is set by the launcher: use --ranks-per-node before --"),
            (("--", "run", "gate", "--ranks-per-node=8"), "after --: --ranks-per-node is set by the launcher: use"),
            (("--", "allreduce", "--allocation", "a\nb"), "after --: 'a\\nb' contains control characters"),
        ],
    )  # fmt: skip
    def test_behind_them(self, inner: tuple[str, ...], said: str, tmp_path: Path) -> None:
        assert refused(tmp_path, "slurm", inner=inner).startswith(said)

    def test_no_file_is_left_by_a_mistake(self, tmp_path: Path) -> None:
        refused(tmp_path, "slurm", "--nodes", "0", "--write", "job")
        assert not (tmp_path / "job").exists()


SITE = """schema = 1
[defaults]
account = "infra"
env = ["A=1"]
[partitions.h100]
gpus-per-node = 8
"""


class TestASite:
    @pytest.fixture(autouse=True)
    def site(self, tmp_path: Path) -> None:
        (tmp_path / "site.toml").write_text(SITE)

    def test_its_words_are_those_of_the_options(self, tmp_path: Path) -> None:
        found = text(tmp_path, "slurm", "--site", "site.toml", "--partition", "h100", "--env", "B=2")
        typed = ["--account", "infra", "--env", "A=1", "--gpus-per-node", "8", "--partition", "h100", "--env", "B=2"]
        assert found == text(tmp_path, "slurm", *typed)
        assert found == text(tmp_path, "slurm", "--partition", "h100", "--env", "B=2", env={"COLLBENCH_SITE": "site.toml"})

    def test_what_is_typed_wins(self, tmp_path: Path) -> None:
        found = text(tmp_path, "slurm", "--site", "site.toml", "--partition", "h100", "--gpus-per-node", "4", "--account", "me")
        assert "#SBATCH --account=me\n" in found and "#SBATCH --ntasks-per-node=4\n" in found

    def test_for_other_launchers_the_partition_is_the_tables_name_alone(self, tmp_path: Path) -> None:
        found = text(tmp_path, "ansible", "--site", "site.toml", "--partition", "h100")
        assert found == text(tmp_path, "ansible", "--gpus-per-node", "8", "--env", "A=1")
        assert refused(tmp_path, "ansible", "--site", "site.toml", "--partition", "h200") == (
            "site.toml: unknown partition 'h200': choose from h100, or add [partitions.h200]"
        )

    def test_a_misspelt_key(self, tmp_path: Path) -> None:
        (tmp_path / "site.toml").write_text("schema = 1\n[partitions.h100]\ngpus_per_node = 8\n")
        assert refused(tmp_path, "slurm", "--site", "site.toml") == (
            "site.toml: [partitions.h100]: unknown key 'gpus_per_node': did you mean gpus-per-node?"
        )


class TestWhereItGoes:
    def test_a_file_that_may_be_run(self, tmp_path: Path) -> None:
        done = emit(tmp_path, "slurm", "--write", "job.sbatch")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "collbench: wrote job.sbatch; next: sbatch job.sbatch\n")
        assert (tmp_path / "job.sbatch").read_text() == text(tmp_path, "slurm")
        assert (tmp_path / "job.sbatch").stat().st_mode & 0o111
        assert refused(tmp_path, "slurm", "--write", "job.sbatch").startswith("--write job.sbatch: the file exists: choose another name")

    def test_the_queue_gets_the_same_file(self, tmp_path: Path) -> None:
        (tmp_path / "sbatch").write_text('#!/bin/sh\ncat >taken\necho "Submitted batch job 7"\n')
        (tmp_path / "sbatch").chmod(0o755)
        path = {"PATH": f"{tmp_path}:{environment()['PATH']}"}
        done = emit(tmp_path, "slurm", "--submit", "--write", "job", env=path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 7\n", "")
        assert (tmp_path / "taken").read_text() == (tmp_path / "job").read_text() == text(tmp_path, "slurm")
        (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
        assert refused(tmp_path, "slurm", "--submit", env=path) == "sbatch failed: sbatch: error: invalid partition specified: x"

    @pytest.mark.parametrize("kind", [kind for kind in kinds().values() if kind.submit], ids=lambda kind: kind.name)
    def test_without_the_command_that_takes_it(self, kind: object, tmp_path: Path) -> None:
        from collbench.deploy.job import LauncherKind

        assert isinstance(kind, LauncherKind)
        image = ["--image", "a/b:c"] if kind.name == "kubernetes" else []
        said = refused(tmp_path, kind.name, *image, "--submit", env={"PATH": str(tmp_path)})
        assert said == f"--submit: {kind.submit[0]} not found: {kind.remedy}"
