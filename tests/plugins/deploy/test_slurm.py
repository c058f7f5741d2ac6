"""The batch script: its directives and commands, and user input that stays inside its quotes."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import BIN, one_sentence, run_here
from tests.plugins.deploy.batch import asked, emit, play
from tests.plugins.deploy.recorded import COMMAND, Recorded, program
from tools.benchmarks import host_list

pytestmark = pytest.mark.system

# A double of collbench: prints the detected launch
DETECT = """\
import json, os, sys
from collbench.launch.detect import detect
found = detect(dict(os.environ))
known = {name: getattr(found, name) for name in ("launcher", "rank", "ranks", "local_rank", "local_ranks", "node", "advice")}
print(json.dumps({**known, "hosts": len(found.hosts), "first": found.hosts[0], "last": found.hosts[-1], "words": sys.argv[1:]}))
"""


class TestDirectives:
    def test_a_job_that_is_too_short_gets_no_signal(self, tmp_path: Path) -> None:
        # Slurm sends it up to a minute early: a job of two minutes would get it at its start.
        assert ["signal" in asked(emit(tmp_path, "--minutes", minutes)) for minutes in ("2", "3")] == [False, True]

    @pytest.mark.parametrize("command", [("probe",), ("allreduce", "--resume", "runs/1")])
    def test_a_command_that_cannot_resume_is_not_requeued(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        actual = asked(emit(tmp_path, command=command))
        assert "no-requeue" in actual and "requeue" not in actual

    @pytest.mark.parametrize(("options", "directives"), [
        ("--nodes 4 --gpus-per-node 8 --gpu-type h100 --cpus-per-rank 12",
         {"nodes": "4", "ntasks-per-node": "8", "gres": "gpu:h100:8", "cpus-per-task": "12"}),
        ("--gpus-per-node 8 --ranks-per-node 1", {"ntasks-per-node": "1"}), ("--gpus-per-node 8", {"gres": "gpu:8"}),
        ("--partition h100 --account infra --qos debug --name a.b-c --minutes 90",
         {"partition": "h100", "account": "infra", "qos": "debug", "job-name": "a.b-c", "time": "90"}),
        ("--array 6", {"array": "1-6%1", "output": "%x-%A_%a.out"}),  # one allocation at a time
    ])  # fmt: skip
    def test_of_options(self, options: str, directives: dict[str, str], tmp_path: Path) -> None:
        assert directives.items() <= asked(emit(tmp_path, *options.split())).items()


class TestSrun:
    def started(self, folder: Path, *options: str, command: tuple[str, ...] = COMMAND) -> Recorded:
        called = play(folder, emit(folder, *options, command=command))
        assert (called.code, called.said) == (0, "")
        return called

    def test_srun_gets_mpi_cores_variables_and_gives_the_exit_code(self, tmp_path: Path) -> None:
        actual = self.started(tmp_path, "--mpi", "pmix", "--cpus-per-rank", "12")
        assert actual.options[2:] == ["--mpi=pmix", "--cpus-per-task=12", "--cpu-bind=cores"]
        script = emit(tmp_path)
        assert "--mpi=" not in re.sub("#.*", "", script) and "`srun --mpi=list`, `collbench doctor --launch`" in script
        assert self.started(tmp_path, "--env", "X=$(id) `id` 'b' \\ #").env["X"] == "$(id) `id` 'b' \\ #"
        assert [play(tmp_path, emit(tmp_path), {"CODE": str(code)}).code for code in (4, 143)] == [4, 143]

    @pytest.mark.parametrize(
        "command", [(*COMMAND, "--out", "mine"), (*COMMAND, "--out=mine"), ("probe",), ("run", "quick", "--resume", "old")]
    )
    def test_no_folder_is_added_to_a_command_that_has_one_or_needs_none(self, command: tuple[str, ...], tmp_path: Path) -> None:
        assert self.started(tmp_path, command=command).command == ["collbench", *command]

    def test_modules_are_loaded_first(self, tmp_path: Path) -> None:
        script = emit(tmp_path, "--module", "gcc/13.2", "--module", "openmpi/5.0", "--env", "X=1")
        assert re.findall(r"^(?:module|set|export X).*$", script, re.MULTILINE) == [
            "module load gcc/13.2 || exit 2", "module load openmpi/5.0 || exit 2", "set -euo pipefail", "export X=1",
        ]  # fmt: skip
        assert script.startswith("#!/bin/bash -l\n") and emit(tmp_path).startswith("#!/bin/bash\n")
        called = play(tmp_path, script.replace("module load gcc/13.2", "false"))
        assert (called.code, called.command) == (2, [])


class TestContainers:
    @pytest.mark.parametrize(("image", "as_pyxis_wants_it"), [
        ("nvcr.io/nvidia/cuda:12", "nvcr.io#nvidia/cuda:12"), ("docker://nvcr.io/nvidia/cuda:12", "nvcr.io#nvidia/cuda:12"),
        ("nvcr.io#nvidia/cuda:12", "nvcr.io#nvidia/cuda:12"), ("host:5000/a/b@sha256:0a", "host:5000#a/b@sha256:0a"),
        ("localhost/a", "localhost#a"), ("docker.io/library/debian:12", "library/debian:12"),
        ("someone/collbench:1", "someone/collbench:1"), ("debian", "debian"), ("collbench.sqsh", "./collbench.sqsh"),
        ("/images/collbench.sqsh", "/images/collbench.sqsh"),
    ])  # fmt: skip
    def test_pyxis_takes_the_image(self, image: str, as_pyxis_wants_it: str, tmp_path: Path) -> None:
        actual = play(tmp_path, emit(tmp_path, "--image", image))
        assert actual.code == 0
        assert actual.options[2:] == [
            f"--container-image={as_pyxis_wants_it}", f"--container-mounts={tmp_path}:{tmp_path},{tmp_path}/runs:{tmp_path}/runs",
            f"--container-workdir={tmp_path}", "--no-container-mount-home",
        ]  # fmt: skip
        assert actual.command == ["collbench", *COMMAND, "--out", f"{tmp_path}/runs/77"]
        assert (tmp_path / "runs").is_dir()  # a mounted folder must exist

    def test_enroot_adds_the_driver_and_a_hook_and_apptainer_runs_its_files(self, tmp_path: Path) -> None:
        actual = play(tmp_path, emit(tmp_path, "--image", "a/b", "--gpus-per-node", "8"))
        assert actual.env["NVIDIA_VISIBLE_DEVICES"] == "all"
        present = list(Path("/sys/bus/pci/drivers").glob("mlx?_core/*/infiniband_verbs"))
        assert actual.env.get("MELLANOX_VISIBLE_DEVICES") == ("all" if present else None)  # the hook fails where there is none
        actual = play(tmp_path, emit(tmp_path, "--image", "a/b"))
        assert "NVIDIA_VISIBLE_DEVICES" not in actual.env
        actual = [["--image", "a/b", "--mpi", "pmix"], ["--image", "a/b", "--mpi", "none"], ["--image", "a.sif", "--mpi", "pmix"]]
        assert ["50-slurm-pmi.sh" in emit(tmp_path, *each) for each in actual] == [True, False, False]
        actual = play(tmp_path, emit(tmp_path, "--image", "x.sqsh", "--container", "apptainer"))
        assert actual.command[:2] == ["apptainer", "exec"] and "x.sqsh" in actual.command

    @pytest.mark.parametrize("gpus", [0, 8])
    def test_apptainer_runs_inside_of_each_rank(self, gpus: int, tmp_path: Path) -> None:
        script = emit(tmp_path, "--image", "/images/collbench.sif", "--mpi", "pmi2", "--gpus-per-node", str(gpus), "--runs", "a b'c")
        actual = play(tmp_path, script)
        assert (actual.code, actual.said) == (0, "")
        assert actual.options == ["--kill-on-bad-exit=1", "--propagate=MEMLOCK", "--mpi=pmi2"]
        inside = ["--no-home", "--bind", f"{tmp_path},{tmp_path}/a b'c", "--pwd", str(tmp_path), "/images/collbench.sif"]
        own = ["collbench", *COMMAND, "--out", f"{tmp_path}/a b'c/77"]
        assert actual.command == ["apptainer", "exec", *["--nv"] * bool(gpus), *inside, *own]


class TestQuoting:
    @pytest.mark.parametrize("option", ["name", "partition", "account", "qos", "gpu-type", "image", "module"])
    @pytest.mark.parametrize("value", ["", "a b", "a'b", 'a"b', "a\n#SBATCH --uid=0", "a;id", "$(id)", "-x", "%j\\", "a,b;c"])
    def test_values_in_directives_are_single_words(self, option: str, value: str, tmp_path: Path) -> None:
        done = run_here(tmp_path, "emit", "slurm", f"--{option}={value}", "--gpus-per-node", "1", "--", *COMMAND)
        assert f"--{option}" in one_sentence(done)

    def test_shellcheck_finds_nothing_and_lines_are_short(self, tmp_path: Path) -> None:
        variants = [
            [],
            ["--gpus-per-node", "8", "--cpus-per-rank", "12", "--mpi", "pmix", "--array", "3", "--env", "X=a 'b'", "--runs", "a b'c"],
            ["--image", "nvcr.io/nvidia/cuda:12", "--gpus-per-node", "8", "--runs", "a b'c"],
            ["--image", "x.sif", "--gpus-per-node", "8", "--module", "apptainer"],
        ]
        for number, actual in enumerate(variants):
            (tmp_path / f"{number}.sh").write_text(emit(tmp_path, *actual))
        files = sorted(map(str, tmp_path.glob("*.sh")))
        done = subprocess.run([str(BIN / "shellcheck"), *files], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
        assert max(len(line) for file in files for line in Path(file).read_text().splitlines()) <= 140


class TestManyNodes:
    """512 nodes with 8 ranks each."""

    def test_the_script_lists_no_node(self, tmp_path: Path) -> None:
        few, many = (emit(tmp_path, "--nodes", nodes, "--ranks-per-node", "8").splitlines() for nodes in ("2", "512"))
        assert [(old, new) for old, new in zip(few, many, strict=True) if old != new] == [("#SBATCH --nodes=2", "#SBATCH --nodes=512")]

    @pytest.mark.parametrize("image", ["", "a/b:1"])
    def test_a_rank_starts_from_few_words_and_srun_s_variables(self, image: str, tmp_path: Path) -> None:
        own = program(tmp_path, "detected", f"#!{BIN}/python\n{DETECT}")
        actual = ["--nodes", "512", "--ranks-per-node", "8", "--program", str(own), *(["--image", image] if image else [])]
        variables = host_list.step(host_list.one_range(512), 5, 512)
        called = play(tmp_path, emit(tmp_path, *actual), {**variables, "SLURM_JOB_ID": "77", "GO_ON": "1"})
        assert (called.code, called.said) == (0, "")
        words, found = " ".join(called.options + called.command), json.loads(called.printed)
        assert len(words) < 1000 and "gpu" not in words
        assert (found["launcher"], found["rank"], found["ranks"]) == ("srun", 5, 4096)
        assert (found["local_rank"], found["local_ranks"], found["node"]) == (5, 8, "0")
        assert (found["hosts"], found["first"], found["last"]) == (512, "gpu00001", "gpu00512")
        assert found["advice"] == [] and found["words"][:3] == list(COMMAND)
        assert variables["SLURM_STEP_NODELIST"] == "gpu[00001-00512]"
