"""emit mpirun: the arguments of each library's mpirun, from a run of the script with a double of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.deploy.job import Value
from collbench.plugins.deploy.kinds.mpirun import KIND
from tests.plugins.deploy.recorded import COMMAND, Recorded, program, recorded, text
from tests.plugins.deploy.texts import HOSTILE

pytestmark = pytest.mark.system

LIBRARIES = ("openmpi", "mpich", "intel")


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Recorded]:
    """Return a function that starts the script for two hosts of a file and returns the arguments before the command."""

    def started(library: str, **said: Value) -> Recorded:
        (tmp_path / "hosts").write_text("# ours\nn1 slots=4\n\nn2:4\n")
        names = {name.replace("_", "-"): value for name, value in said.items()}
        found = recorded(tmp_path, KIND, {"library": library, "hosts": "hosts", "nodes": 2, **names}, command=(*COMMAND, "--out", "run"))
        assert (found.code, found.said) == (0, "")
        assert found.words[-6:] == ["collbench", *COMMAND, "--out", "run"]
        return Recorded(0, "", found.words[:-6], found.env)

    return started


class TestRanks:
    @pytest.mark.parametrize(("library", "words"), [
        ("openmpi", "-n 8 --map-by ppr:4:node --hostfile hosts --bind-to core"), ("mpich", "-n 8 -ppn 4 -f hosts"),
        ("intel", "-n 8 -ppn 4 -f hosts"),
    ])  # fmt: skip
    def test_the_options_that_place_ranks(self, library: str, words: str, start: Callable[..., Recorded]) -> None:
        assert " ".join(start(library, ranks_per_node=4).words).startswith(f"{words} ")

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_ranks_follow_gpus_and_the_script_does_not_grow_with_the_number_of_nodes(self, library, start):
        assert start(library, gpus_per_node=8).after("-n") == "16"
        said = {"library": library, "hosts": "hosts", "ranks-per-node": 8}
        few, many = (text(KIND, {**said, "nodes": nodes}) for nodes in (512, 99_999))
        assert len(many) - len(few) < 20

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_fewer_hosts_than_nodes_start_nothing(self, library: str, tmp_path: Path) -> None:
        (tmp_path / "hosts").write_text("# n0\nn1\n")
        found = recorded(tmp_path, KIND, {"library": library, "hosts": "hosts", "nodes": 2})
        assert (found.code, found.words) == (2, []) and found.said.startswith("hosts ") and " 2 hosts" in found.said

    def test_a_missing_host_file_starts_nothing_and_one_node_needs_none(self, tmp_path: Path) -> None:
        found = recorded(tmp_path, KIND, {"hosts": "none", "nodes": 1})
        assert (found.code, found.words) == (2, []) and "none: No such file" in found.said
        assert recorded(tmp_path, KIND, {"nodes": 1}).after("-n") == "1"

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_hosts_of_the_scheduler(self, library: str, tmp_path: Path) -> None:
        said: dict[str, Value] = {"library": library, "nodes": 2}
        assert "--hosts FILE" in recorded(tmp_path, KIND, said).said
        words = recorded(tmp_path, KIND, said, env={"SLURM_JOB_ID": "8"}).words
        assert not {"-f", "--hostfile", "-hosts"} & set(words)
        assert ("I_MPI_JOB_RESPECT_PROCESS_PLACEMENT" in words) == (library == "intel")


class TestBinding:
    @pytest.mark.parametrize(("library", "said", "words"), [
        ("openmpi", {}, ["--bind-to", "core"]), ("openmpi", {"gpus_per_node": 8}, ["--bind-to", "none"]),
        ("openmpi", {"bind": "numa"}, ["--bind-to", "numa"]), ("mpich", {}, ["-bind-to", "core"]),
        ("mpich", {"cpus_per_rank": 4, "gpus_per_node": 8}, ["-bind-to", "core:4"]), ("mpich", {"bind": "numa"}, ["-bind-to", "numa"]),
        ("intel", {}, ["-genv", "I_MPI_PIN_DOMAIN", "core"]), ("intel", {"gpus_per_node": 8}, ["-genv", "I_MPI_PIN", "0"]),
        ("intel", {"cpus_per_rank": 4}, ["-genv", "I_MPI_PIN_CELL", "core", "-genv", "I_MPI_PIN_DOMAIN", "4:compact"]),
    ])  # fmt: skip
    def test_the_options_that_bind_ranks(self, library, said, words, start):
        found = start(library, **said).words
        assert found[(at := found.index(words[0])) : at + len(words)] == words

    def test_cores_belong_to_the_mapping_of_open_mpi_and_mpich_binds_nothing_by_default(self, start: Callable[..., Recorded]) -> None:
        assert start("openmpi", cpus_per_rank=4, ranks_per_node=2).after("--map-by") == "ppr:2:node:PE=4"
        assert "-bind-to" not in start("mpich", gpus_per_node=8).words

    @pytest.mark.parametrize("bind", ["numa", "none"])
    def test_cores_and_another_binding_are_rejected(self, bind: str) -> None:
        with pytest.raises(UsageError, match=f"--cpus-per-rank 2 .*--bind {bind}"):
            text(KIND, {"cpus-per-rank": 2, "bind": bind})

    @pytest.mark.parametrize("library", LIBRARIES)
    @pytest.mark.parametrize(("said", "why"), [
        ({}, "moves between cores"), ({"gpus-per-node": 8}, "NCCL binds its threads"), ({"bind": "none"}, "as requested"),
        ({"bind": "numa"}, "NUMA node of its memory"),
    ])  # fmt: skip
    def test_the_reason_is_in_the_comment_above(self, library: str, said: dict[str, Value], why: str) -> None:
        lines = text(KIND, {"library": library, **said}).splitlines()
        bound = [at for at, line in enumerate(lines) if "bind-to" in line or "I_MPI_PIN" in line]
        assert all(why in lines[at - 1] for at in bound) and (bound or library == "mpich")


class TestOtherOptions:
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_an_interface(self, library: str, start: Callable[..., Recorded]) -> None:
        words = start(library, interface="eth0").words
        wanted = "--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0" if library == "openmpi" else "-iface eth0"
        assert f" {wanted} " in f" {' '.join(words)} "
        assert "eth0" not in start(library).words

    def test_mpich_lets_ranks_report_a_killed_one_and_variables_are_passed_unchanged(self, start: Callable[..., Recorded]) -> None:
        assert "-disable-auto-cleanup" in start("mpich").words
        variables = tuple(f"A{number}={value}" for number, value in enumerate(HOSTILE))
        words = start("openmpi", env=variables).words
        assert words[-2 * len(variables) :] == [word for each in variables for word in ("-x", each)]
        for library in ("mpich", "intel"):
            words = start(library, env=variables).words
            assert words[-3 * len(variables) :] == [word for each in variables for word in ("-genv", *each.split("=", 1))]

    def test_open_mpi_gets_paths_and_its_launcher_by_its_full_path(self, tmp_path: Path) -> None:
        without = recorded(tmp_path, KIND, {"nodes": 1}).words
        assert without[without.index("-x") : without.index("-x") + 3] == ["-x", "PATH", "collbench"]
        words = recorded(tmp_path, KIND, {"nodes": 1}, env={"LD_LIBRARY_PATH": "/site/lib"}).words
        assert words[words.index("-x") : words.index("-x") + 5] == ["-x", "PATH", "-x", "LD_LIBRARY_PATH", "collbench"]
        words = recorded(tmp_path, KIND, {"nodes": 1, "runs": "/data/my runs", "name": "nightly"}).words
        assert words[-2] == "--out" and words[-1].startswith("/data/my runs/20") and words[-1].endswith("Z-nightly")
        for command in (("probe",), ("allreduce", "--out", "x"), ("allreduce", "--resume", "x")):
            assert recorded(tmp_path, KIND, {"nodes": 1}, command=command).words[-len(command) :] == list(command)
        env = {"BASH_FUNC_module%%": '() { echo "$@" >&2; }'}
        assert recorded(tmp_path, KIND, {"nodes": 1, "module": ("gcc/14", "openmpi/5.0")}, env=env).said == "load gcc/14 openmpi/5.0\n"
        missing = recorded(tmp_path, KIND, {"nodes": 1, "module": ("openmpi/5.0",)}, env={"BASH_FUNC_module%%": "() { false; }"})
        assert (missing.code, missing.words) == (2, [])

    def test_the_launcher_is_started_by_its_full_path(self, tmp_path: Path) -> None:
        """Open MPI then finds its daemon at the same place on nodes with another PATH."""
        program(tmp_path, "mpirun", "#!/bin/sh\nprintf '1\\0%s\\0' \"$0\"\n")
        assert recorded(tmp_path, KIND, {"nodes": 1}, launchers=()).words == [str(tmp_path / "mpirun")]

    @pytest.mark.parametrize(("library", "words"), [("openmpi", "mpirun not found"), ("mpich", "mpiexec not found")])
    def test_no_launcher(self, library: str, words: str, tmp_path: Path) -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in ("bash", "date", "grep"):
            (tools / name).symlink_to(Path("/usr/bin", name) if Path("/usr/bin", name).exists() else Path("/bin", name))
        found = recorded(tmp_path, KIND, {"library": library, "nodes": 1}, launchers=(), env={"PATH": str(tools)})
        assert found.code == 2 and words in found.said
