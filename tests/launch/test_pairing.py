"""Launcher and MPI library must fit: every pairing as measured, checked before MPI_Init."""

import pytest
from msgspec.structs import replace

from collbench.launch import slurm
from collbench.launch.detect import detect
from collbench.launch.mpi import mpi_mismatch, mpi_name, size_disagrees
from tests.launch import captured
from tests.launch.captured import INTEL_MPI, MPICH, OPEN_MPI

POD = {"JOB_COMPLETION_INDEX": "1", "COLLBENCH_PODS": "2", "MASTER_ADDR": "job-0.job", "COLLBENCH_SECRET": "x"}


@pytest.fixture(autouse=True)
def names_resolve(monkeypatch):
    monkeypatch.setattr(slurm, "resolve", lambda host: ("10.0.0.1",))


@pytest.mark.parametrize(("library", "env", "remedy"), [
    (MPICH, captured.SRUN_NONE, "srun --mpi=pmi2"), (MPICH, captured.SRUN_PMI2, None), (MPICH, captured.SRUN_PMIX, "srun --mpi=pmi2"),
    (MPICH, captured.HYDRA, None), (MPICH, captured.PRTE, "Open MPI's mpirun"), (MPICH, captured.TORCHRUN, "torchrun"),
    (OPEN_MPI, captured.SRUN_NONE, "srun --mpi=pmix"), (OPEN_MPI, captured.SRUN_PMI2, "srun --mpi=pmix"),
    (OPEN_MPI, captured.SRUN_PMIX, None), (OPEN_MPI, captured.HYDRA, "MPICH's mpirun"), (OPEN_MPI, captured.PRTE, None),
    (OPEN_MPI, captured.TORCHRUN, "torchrun"), (MPICH, captured.INTEL_HYDRA, None), (INTEL_MPI, captured.INTEL_HYDRA, None),
    (INTEL_MPI, captured.HYDRA, None), (INTEL_MPI, captured.SRUN_NONE, "srun --mpi=pmi2"), (INTEL_MPI, captured.SRUN_PMI2, None),
    (INTEL_MPI, captured.SRUN_PMIX, None),
    (INTEL_MPI.replace("2021.18.1", "2021.12.1"), captured.SRUN_PMIX, "srun --mpi=pmi2"),
    (INTEL_MPI, captured.TORCHRUN, "torchrun"), (INTEL_MPI, captured.PRTE, "Open MPI's mpirun"),
    (OPEN_MPI, captured.INTEL_HYDRA, "Intel MPI's mpirun"), (MPICH, POD, "MPIJob"),
])  # fmt: skip
def test_each_pairing_as_measured(library, env, remedy):
    why = mpi_mismatch(library, detect(env), env)
    assert why is None if remedy is None else remedy in why


ALONE = {name: value for name, value in captured.SRUN_ONE.items() if not name.startswith("PMI_")}
ALONE_WITH_PMIX = {name: value for name, value in captured.SRUN_ONE.items() if name != "PMI_SIZE"}
ALONE_WITH_PMIX |= {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.8.0"}
BOTH = MPICH.replace("--with-pm=", "--with-pmix=/usr --with-pm=")
BELOW_A_TASK = {"mpi": None, "ranks": 6, "local_ranks": 2, "facts": {"worker": "2"}}


@pytest.mark.parametrize(
    ("library", "env", "changes", "remedy"),
    [
        (MPICH, ALONE, {}, None),
        (OPEN_MPI, ALONE, {}, None),
        (MPICH, ALONE_WITH_PMIX, {}, "srun --mpi=pmi2"),  # it aborts even alone
        (OPEN_MPI, ALONE_WITH_PMIX, {}, None),
        (BOTH, captured.SRUN_PMIX, {}, None),
        (MPICH, captured.SRUN_PMI2, {"ranks": 4}, "PMI_SIZE=3"),
        (MPICH, captured.SRUN_PMI2, BELOW_A_TASK, "srun --ntasks-per-node=2 --mpi=pmi2"),
    ],
    ids=["alone", "alone, Open MPI", "alone with PMIx", "alone with PMIx, Open MPI", "built for both", "another size", "below a task"],
)
def test_other_pairings(library, env, changes, remedy):
    why = mpi_mismatch(library, replace(detect(env), **changes), {} if "facts" in changes else env)
    assert why is None if remedy is None else remedy in why


LIBRARIES_OF_PMI = ("libpmi2.so.0", "libpmix.so.2", "libpmi.so")


@pytest.mark.parametrize(("env", "misfits"), [
    (captured.SRUN_PMI2, {"libpmix.so.2": "srun --mpi=pmix"}),
    (captured.SRUN_PMIX, {"libpmi2.so.0": "srun --mpi=pmi2", "libpmi.so": "srun --mpi=pmi2"}),
    (captured.INTEL_HYDRA, {}),  # ignored there
    (captured.HYDRA, dict.fromkeys(LIBRARIES_OF_PMI, "unset I_MPI_PMI_LIBRARY")),
], ids=["pmi2", "pmix", "own mpiexec", "mpiexec of MPICH"])  # fmt: skip
@pytest.mark.parametrize("name", LIBRARIES_OF_PMI)
def test_i_mpi_pmi_library_must_fit_the_launcher(env, misfits, name, tmp_path):
    path = tmp_path / name
    env = {**env, "I_MPI_PMI_LIBRARY": str(path)}
    assert mpi_mismatch(INTEL_MPI, detect(env), env) is None  # Intel MPI ignores a missing file
    path.touch()
    why = mpi_mismatch(INTEL_MPI, detect(env), env)
    assert why is None if name not in misfits else misfits[name] in why and str(path) in why
    assert mpi_mismatch(MPICH, detect(env), env) == mpi_mismatch(MPICH, detect(env), {**env, "I_MPI_PMI_LIBRARY": ""})


def test_i_mpi_pmi_library_ends_a_single_rank_without_a_launcher(tmp_path):
    (tmp_path / "libpmi2.so").touch()
    assert mpi_mismatch(INTEL_MPI, detect(ALONE), ALONE) is None
    env = {**ALONE, "I_MPI_PMI_LIBRARY": str(tmp_path / "libpmi2.so")}
    assert "unset I_MPI_PMI_LIBRARY" in mpi_mismatch(INTEL_MPI, detect(env), env)


def test_after_init_the_communicator_must_have_the_launchers_size():
    assert size_disagrees(3, detect(captured.SRUN_PMI2)) is None


@pytest.mark.parametrize(("text", "name"), [
    (MPICH, "MPICH 5.0.2"), (OPEN_MPI, "Open MPI 5.0.11"), (INTEL_MPI, "Intel MPI 2021.18.1"),
    ("MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date", "MVAPICH 2.3.7"),
    ("MPI VERSION    : CRAY MPICH version 8.1.29.8 (ANL base 3.4a2)", "Cray MPICH 8.1.29.8"),
    ("HPE HMPT 2.30\nmore", "HPE HMPT 2.30"),
])  # fmt: skip
def test_the_short_names_of_libraries(text, name):
    assert mpi_name(text) == name
