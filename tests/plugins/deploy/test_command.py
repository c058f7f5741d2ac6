"""collbench emit: options, site files, where the file is written; every mistake is one sentence."""

import re
from pathlib import Path

import pytest

from collbench.plugins.deploy.job import LauncherKind
from collbench.plugins.deploy.kinds import kinds
from tests.cli.command import Finished, environment, one_sentence, run_here
from tests.plugins.deploy.recorded import program

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
    def test_options_have_variables_and_any_place_and_the_last_one_counts(self, tmp_path: Path) -> None:
        assert text(tmp_path, "slurm", "--nodes", "4") == text(tmp_path, "--nodes", "4", "slurm")
        assert "#SBATCH --nodes=4\n" in text(tmp_path, "slurm", "--nodes", "4")
        env = {"COLLBENCH_NODES": "5", "COLLBENCH_GPUS_PER_NODE": "8", "COLLBENCH_ENV": "A=1"}
        found = text(tmp_path, "slurm", "--nodes", "4", env=env)
        assert found == text(tmp_path, "slurm", "--nodes", "4", "--gpus-per-node", "8", "--env", "A=1")
        assert text(tmp_path, "reframe", "--nodes", "4", "--nodes", "3") == text(tmp_path, "reframe", "--nodes", "3")
        found = text(tmp_path, "reframe", "--env", "A=1", "--env", "B=2", "--env", "A=3")
        assert re.findall(r"export (\w=\d)", found) == ["A=3", "B=2"]

    def test_words_after_the_dashes_are_the_command_and_a_check_is_not_resumed(self, tmp_path: Path) -> None:
        found = text(tmp_path, "reframe", inner=("--", "allreduce", "--seed", "4", "--allocation", "{{ x }} $(id) #"))
        assert '"--seed",\n        "4",\n        "--allocation",\n        "\'{{ x }} $(id) #\'",\n' in found
        assert "COLLBENCH" not in text(tmp_path, "reframe", env={"COLLBENCH_SEED": "3"})
        assert "--resume-if-exists" not in text(tmp_path, "slurm", inner=("--", "check"))

    @pytest.mark.parametrize("kind", list(kinds()))
    @pytest.mark.parametrize("words", ["check", "osu_allreduce", "latency --mode pipelined", "pairs", "hunt", "workload ddp", "run quick"])
    def test_every_measuring_command_can_be_started(self, words: str, kind: str, tmp_path: Path) -> None:
        more = ["--endpoint", "node1"] if kind == "torchrun" else ["--image", "a:b"] if kind == "kubernetes" else []
        started = text(tmp_path, kind, *more, inner=("--", *words.split()))
        assert words.split(maxsplit=1)[0].removeprefix("osu_").replace("latency", "p2p") in started


class TestMistakes:
    @pytest.mark.parametrize(("words", "value"), [
        ("xyz", ", ".join(kinds())), ("slurm --nodes -1", "--nodes: '-1'"), ("slurm --nodes=", "--nodes: ''"),
        ("slurm --sizes 8", "--sizes"), ("ansible --partition x", "--partition "), ("slurm --partition=", "--partition: ''"),
    ])  # fmt: skip
    def test_before_the_dashes(self, words: str, value: str, tmp_path: Path) -> None:
        assert value in refused(tmp_path, *words.split())

    @pytest.mark.parametrize(("inner", "value"), [
        (("--",), "missing command"), (("--", "gate", "--baseline", "x", "y"), "after --: 'gate'"),
        (("--", "emit", "slurm"), "after --: 'emit'"), (("--", "collbench", "allreduce"), "after --: 'collbench'"),
        (("--", "allreduce", "8"), "after --: '8'"), (("--", "allreduce", "--max-time", "0"), "--max-time: '0'"),
        (("--", "allreduce", "--allocation", "a\nb"), "after --: 'a\\nb'"),
    ])  # fmt: skip
    def test_after_the_dashes(self, inner: tuple[str, ...], value: str, tmp_path: Path) -> None:
        assert value in refused(tmp_path, "slurm", inner=inner)

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

    def test_a_site_has_the_options_as_keys_and_a_typed_one_wins(self, tmp_path: Path) -> None:
        found = text(tmp_path, "slurm", "--site", "site.toml", "--partition", "h100", "--env", "B=2")
        typed = ["--account", "infra", "--env", "A=1", "--gpus-per-node", "8", "--partition", "h100", "--env", "B=2"]
        assert found == text(tmp_path, "slurm", *typed)
        assert found == text(tmp_path, "slurm", "--partition", "h100", "--env", "B=2", env={"COLLBENCH_SITE": "site.toml"})
        found = text(tmp_path, "slurm", "--site", "site.toml", "--partition", "h100", "--gpus-per-node", "4", "--account", "me")
        assert "#SBATCH --account=me\n" in found and "#SBATCH --ntasks-per-node=4\n" in found
        (tmp_path / "site.toml").write_text("schema = 1\n[partitions.h100]\ngpus_per_node = 8\n")
        said = refused(tmp_path, "slurm", "--site", "site.toml")
        assert said.startswith("site.toml: [partitions.h100]: ") and "'gpus_per_node'" in said

    def test_for_other_launchers_the_partition_is_the_tables_name_alone(self, tmp_path: Path) -> None:
        found = text(tmp_path, "ansible", "--site", "site.toml", "--partition", "h100")
        assert found == text(tmp_path, "ansible", "--gpus-per-node", "8", "--env", "A=1")
        assert "'h200'" in refused(tmp_path, "ansible", "--site", "site.toml", "--partition", "h200")


class TestOutput:
    def test_the_file_is_written_and_the_next_step_said(self, tmp_path: Path) -> None:
        done = emit(tmp_path, "slurm", "--write", "job.sbatch")
        assert (done.returncode, done.stdout) == (0, "") and done.stderr.endswith(" sbatch job.sbatch\n")
        assert (tmp_path / "job.sbatch").read_text() == text(tmp_path, "slurm")

    @pytest.mark.system
    def test_submit_sends_the_same_file_to_the_queue(self, tmp_path: Path) -> None:
        program(tmp_path, "sbatch", '#!/bin/sh\ncat >taken\necho "Submitted batch job 7"\n')
        path = {"PATH": f"{tmp_path}:{environment()['PATH']}"}
        done = emit(tmp_path, "slurm", "--submit", "--write", "job", env=path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 7\n", "")
        assert (tmp_path / "taken").read_text() == (tmp_path / "job").read_text() == text(tmp_path, "slurm")
        (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
        assert refused(tmp_path, "slurm", "--submit", env=path).endswith("invalid partition specified: x")

    @pytest.mark.parametrize("kind", [kind for kind in kinds().values() if kind.submit], ids=lambda kind: kind.name)
    def test_submit_without_the_command_of_the_queue(self, kind: LauncherKind, tmp_path: Path) -> None:
        image = ["--image", "a/b:c"] if kind.name == "kubernetes" else []
        said = refused(tmp_path, kind.name, *image, "--submit", env={"PATH": str(tmp_path)})
        assert kind.submit[0] in said and said.endswith(kind.remedy)
