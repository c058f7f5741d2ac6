"""CB24xx, the host (shared memory, NUMA nodes, unreliable sources), and CB28xx, its software and its settings for jobs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import msgspec

from collbench.addresses import is_loopback_up
from collbench.launch import shared_memory
from collbench.launch.explain import mixed_mpi
from collbench.launch.mpi import PMI_LIBRARY
from collbench.launch.network import GLOO_INTERFACE, missing_interface
from collbench.machine.doctor.finding import Finding, MachineView
from collbench.units import format_bytes, listed, plural

# CB2804 to CB2809, settings of jobs on this host: NCCL's environment and files, the GID of RoCE, Slurm's topology, Intel MPI's variables.
#
# Examined only on rank 0's host, with the software (`examined_software`).

FORCED: Final = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS")
FORCED_REMEDY: Final = "remove {names} from the environment, /etc/nccl.conf and ~/.nccl.conf, and measure with and without"
_PATIENCE_S: Final = 4.0
_MOST_BYTES: Final = 1 << 16
_ROCE_V2: Final = "RoCE v2"
_TOPOLOGY = re.compile(r"^\s*TopologyPlugin\s*=\s*(\S+)", re.MULTILINE)
_NO_TOPOLOGY = ("topology/default", "topology/flat", "topology/none")


class ConfiguredValue(msgspec.Struct, frozen=True):
    """The value of a variable, and where it is set: "the environment", "/etc/nccl.conf"."""

    value: str
    source: str


def examined(hostname: str | None, env: Mapping[str, str], root: Path = Path("/")) -> list[Finding]:
    """Return the findings about the job settings of this host. `root`: the folder that holds etc and sys."""
    # as NCCL reads its variables: the environment overrides ~/.nccl.conf, which overrides /etc/nccl.conf
    files = [(root / "etc/nccl.conf", "/etc/nccl.conf")]
    user_file = env.get("NCCL_CONF_FILE") or (f"{env['HOME']}/.nccl.conf" if env.get("HOME") else "")
    if user_file:
        files.append((Path(user_file), str(Path(user_file))))
    configured: dict[str, ConfiguredValue] = {}
    for file, name in files:
        configured |= {key: ConfiguredValue(value, name) for key, value in _assignments(file)}
    configured |= {name: ConfiguredValue(value, "the environment") for name, value in env.items() if name.startswith("NCCL_")}
    return [
        *forced_choice(hostname, configured),
        *wrong_gid(hostname, configured, root),
        *no_topology(hostname, env),
        *unsuitable_provider(hostname, env, root),
        *intel_mpi(hostname, env),
        *wrong_interface(hostname, env),
    ]


def wrong_interface(hostname: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """CB2813 and CB2814: GLOO_SOCKET_IFNAME names an interface that this host does not have; the interface lo is down."""
    missing = missing_interface(env)
    if missing:
        evidence = f"{GLOO_INTERFACE}={missing.value} in the environment"
        yield Finding("CB2813", "warning", hostname, missing.cause(), evidence, missing.remedy())
    if not is_loopback_up():
        what = "lo is down: processes of this host cannot connect to each other"
        yield Finding("CB2814", "severe", hostname, what, "flags of the interface lo", "ip link set lo up")


def forced_choice(hostname: str | None, configured: Mapping[str, ConfiguredValue]) -> Iterator[Finding]:
    """CB2804: algorithm, protocol or channels are set manually on this host."""
    forced = [name for name in FORCED if name in configured]
    if forced:
        evidence = listed([f"{name}={configured[name].value} in {configured[name].source}" for name in forced])
        what = f"{listed(forced)} {'is' if len(forced) == 1 else 'are'} set: NCCL cannot choose by message size"
        yield Finding("CB2804", "warning", hostname, what, evidence, FORCED_REMEDY.format(names=listed(forced)))


def wrong_gid(hostname: str | None, configured: Mapping[str, ConfiguredValue], root: Path) -> Iterator[Finding]:
    """CB2805: NCCL_IB_GID_INDEX is not the index of a RoCE v2 address on RoCE ports."""
    index_setting = configured.get("NCCL_IB_GID_INDEX")
    if index_setting is None or not index_setting.value.strip().isdigit():
        return
    index = int(index_setting.value)
    type_of = {device: types.get(index, "empty") for device, types in _gid_types(root).items() if types.get(index) != _ROCE_V2}
    if type_of:
        types = f"{listed(sorted(set(type_of.values())))} in /sys/class/infiniband/*/ports/*/gid_attrs/types"
        what = f"NCCL_IB_GID_INDEX={index} does not name a RoCE v2 address of {listed(list(type_of))}"
        remedy = "set the index of the RoCE v2 GID with the IPv4 address (`show_gids`), or remove the variable with NCCL 2.21 or later"
        yield Finding("CB2805", "warning", hostname, what, f"set in {index_setting.source}; index {index} is {types}", remedy)


def no_topology(hostname: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """CB2806: Slurm places jobs without knowledge of the switches. No finding where scontrol is missing or does not answer."""
    scontrol = shutil.which("scontrol", path=env.get("PATH"))
    done = _run([scontrol, "show", "config"], env, _PATIENCE_S) if scontrol else None
    match = _TOPOLOGY.search(done.stdout) if done and done.returncode == 0 else None
    if match and match[1] in _NO_TOPOLOGY:
        what = "Slurm has no topology plug-in: it places jobs as if all nodes were on one switch"
        evidence = f"scontrol show config: TopologyPlugin = {match[1]}"
        remedy = (
            "on a cluster with several leaf switches: TopologyPlugin=topology/tree with a topology.conf (racks of NVLink: topology/block)"
        )
        yield Finding("CB2806", "note", hostname, what, evidence, remedy)


_PROVIDERS: Final = ("FI_PROVIDER", "I_MPI_OFI_PROVIDER")  # libfabric's variable, and Intel MPI's for the same
_OVER_TCP = frozenset({"tcp", "sockets", "udp", "net"})
_OVER_RDMA = frozenset({"verbs", "mlx", "efa"})  # a device of these is in /sys/class/infiniband


def unsuitable_provider(hostname: str | None, env: Mapping[str, str], root: Path) -> Iterator[Finding]:
    """CB2807: libfabric is set to TCP on a host with an active RDMA port, or to an RDMA provider on a host without a device."""
    state_of = {port.parts[-3]: _line(port / "state") for port in sorted(root.glob("sys/class/infiniband/*/ports/*"))}
    active = [device for device, state in state_of.items() if "ACTIVE" in state]
    for variable in _PROVIDERS:
        value = env.get(variable, "").strip().lower()
        if not value or value.startswith("^"):  # a list of those to leave out
            continue
        providers = {layers.partition(";")[0].strip() for layers in value.split(",")}
        if providers <= _OVER_TCP and active:
            verb = "is" if len(active) == 1 else "are"
            what = f"{variable}={value}: MPI over libfabric uses TCP between hosts, although {listed(active)} {verb} active"
            remedy = f"unset {variable}: libfabric then prefers the RDMA device; `fi_info -l` lists the providers"
            yield Finding("CB2807", "warning", hostname, what, "state in /sys/class/infiniband/*/ports/*", remedy)
        elif providers <= _OVER_RDMA and not state_of and (root / "sys/class").is_dir():
            what = f"{variable}={value}: this host has no RDMA device, so MPI_Init of Intel MPI fails between hosts"
            remedy = f"unset {variable}, or load the driver of the device; `fi_info -p {min(providers)}` must list it"
            yield Finding("CB2807", "warning", hostname, what, "/sys/class/infiniband is empty or missing", remedy)


def intel_mpi(hostname: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """CB2808: I_MPI_FABRICS leaves shared memory out. CB2809: I_MPI_PMI_LIBRARY names a missing file."""
    if env.get("I_MPI_FABRICS", "").strip().lower() == "ofi":
        what = "I_MPI_FABRICS=ofi: ranks of Intel MPI on one host exchange messages through libfabric instead of shared memory"
        remedy = "unset I_MPI_FABRICS, or set shm:ofi, unless this is intended"
        yield Finding("CB2808", "warning", hostname, what, "I_MPI_FABRICS in the environment", remedy)
    library = env.get(PMI_LIBRARY, "")
    if library and not Path(library).exists():
        what = f"{PMI_LIBRARY}={library} does not exist: Intel MPI ignores it, and before 2021.14 may crash in MPI_Init under srun"
        remedy = f"set it to the libpmi2.so of Slurm (srun --mpi=pmi2) or to libpmix.so (srun --mpi=pmix), or unset {PMI_LIBRARY}"
        yield Finding("CB2809", "warning", hostname, what, f"{PMI_LIBRARY} in the environment", remedy)


def _assignments(file: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each NAME=VALUE line, as NCCL reads its files; nothing where the file cannot be read."""
    try:
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name.strip(), value.strip()


def _gid_types(root: Path) -> dict[str, dict[int, str]]:
    """Return the GID types of RoCE ports by device and index. Empty entries cannot be read and are left out."""
    types_of_devices: dict[str, dict[int, str]] = {}
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        if _line(port / "link_layer") == "Ethernet":
            types = {int(file.name): _line(file) for file in (port / "gid_attrs/types").glob("*") if file.name.isdigit()}
            if any(types.values()):
                types_of_devices[port.parts[-3]] = {index: gid_type for index, gid_type in types.items() if gid_type}
    return types_of_devices


def _line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _run(line: Sequence[str], env: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str] | None:
    """Return the result of a command; None when it cannot start or exceeds the time limit."""
    try:
        return subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=seconds, check=False, env=dict(env))
    except (OSError, subprocess.TimeoutExpired):
        return None


# CB2801 to CB2803 and CB2810, this Python and this shell: conflicting or broken packages, and an mpiexec of another MPI.
#
# Packages that may be broken are imported in a separate process with a deadline, since all checks before a job have only a few seconds.

_SOFTWARE_PATIENCE_S: Final = 6.0
# The distributions in cupy's own check (cupy/_environment.py, 14.2); each of them contains a package `cupy`.
_CUPY: Final = (
    *("cupy", "cupy-cuda102", "cupy-cuda110", "cupy-cuda111", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
    *("cupy-rocm-4-3", "cupy-rocm-5-0", "cupy-rocm-7-0", "cupy-rocm-7-1", "cupy-rocm-7-14"),
)


def examined_software(hostname: str | None, env: Mapping[str, str], path: Sequence[str] | None = None) -> list[Finding]:
    """Return the findings about the packages on `path` (default: those of this Python) and the programs in the PATH of `env`."""
    folders = list(sys.path if path is None else path)
    broken = [*broken_torchcomms(hostname, env, folders), *broken_oneccl(hostname, env, folders)]
    return [*broken, *mixed_mpiexec(hostname, env), *clashing_cupy(hostname, folders)]


_WITHOUT_TORCHCOMMS = "import sys; sys.modules['torchcomms'] = None; import torch.distributed"


def broken_torchcomms(hostname: str | None, env: Mapping[str, str], path: Sequence[str]) -> Iterator[Finding]:
    """CB2801: `import torch` fails because of an installed torchcomms. No finding when the check exceeds its time limit."""
    torchcomms = _version("torchcomms", path)
    torch = _version("torch", path)
    if torchcomms is None or torch is None:
        return
    done = _run([sys.executable, "-P", "-c", "import torch.distributed"], env, _SOFTWARE_PATIENCE_S)
    if done is None or done.returncode == 0:
        return
    without = _run([sys.executable, "-P", "-c", _WITHOUT_TORCHCOMMS], env, _SOFTWARE_PATIENCE_S)
    if without and without.returncode == 0:
        what = f"`import torch` fails, since the installed torchcomms {torchcomms} is broken"
        evidence = f"{sys.executable} -P -c 'import torch.distributed' ends with: {done.stderr.strip().splitlines()[-1].strip()[:200]}"
        remedy = f"pip uninstall torchcomms; build one for torch {torch} into an environment of its own (python -m venv ENVIRONMENT)"
        yield Finding("CB2801", "severe", hostname, what, evidence, remedy)


def mixed_mpiexec(hostname: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """CB2802: the mpirun or mpiexec in PATH belongs to another MPI than mpi4py's.

    A warning: it matters only when ranks are started with it.
    """
    mixed = mixed_mpi(env)
    if mixed:
        evidence = "`--version` of each, and MPI.Get_library_version()"
        remedy = "start ranks with the mpirun of mpi4py's MPI; `collbench doctor --launch` shows both and the command"
        yield Finding("CB2802", "warning", hostname, mixed.what, evidence, remedy)


def clashing_cupy(hostname: str | None, path: Sequence[str]) -> Iterator[Finding]:
    """CB2803: several cupy wheels, which contain files of the same names: the last one installed overwrote the others."""
    versions = {name: _version(name, path) for name in _CUPY}
    wheels = [name for name, version in versions.items() if version]
    if len(wheels) > 1:
        what = f"{listed(wheels)} are installed together and have overwritten each other's files"
        evidence = f"pip's records: {listed([f'{name} {versions[name]}' for name in wheels])}"
        uninstall = f"pip uninstall -y {' '.join(wheels)}"
        remedy = f"{uninstall}; then install the one for the driver here: pip install 'collbench[cuda13]' or [cuda12]"
        yield Finding("CB2803", "warning", hostname, what, evidence, remedy)


_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"


def broken_oneccl(hostname: str | None, env: Mapping[str, str], path: Sequence[str]) -> Iterator[Finding]:
    """CB2810: the library of the wheel oneccl-cpu does not load. No finding when the check exceeds its time limit."""
    wheel = next(iter(distributions(name="oneccl-cpu", path=list(path))), None)
    if wheel is None:
        return
    library = next((str(file.locate()) for file in wheel.files or () if file.name == "libccl.so.1"), None)
    done = _run([sys.executable, "-P", "-c", _LOAD, library], env, _SOFTWARE_PATIENCE_S) if library else None
    if library and done and done.returncode and "OSError: " in done.stderr:
        what = f"the installed oneccl-cpu {wheel.version} does not load, so the backend oneccl is not available"
        evidence = f"{Path(library).resolve()}: {done.stderr.strip().rpartition('OSError: ')[2][:200]}"
        remedy = "pip install 'oneccl-cpu<2021.17' 'oneccl-cpu-devel<2021.17': later wheels need libccl.so.2, which they lack"
        yield Finding("CB2810", "warning", hostname, what, evidence, remedy)


def _version(package: str, path: Sequence[str]) -> str | None:
    """Return the installed version of a package from pip's records, without importing it; None when missing."""
    distribution = next(iter(distributions(name=package, path=list(path))), None)
    return distribution.version if distribution else None


_MOST_DOUBTS = 10


def small_shm(view: MachineView) -> Iterator[Finding]:
    """CB2401: less than 1 GiB of /dev/shm. Docker's default is 64 MiB."""
    size = view.machine.system.shm_bytes
    if size is None or size >= shared_memory.LEAST_BYTES:
        return
    what = f"/dev/shm has {format_bytes(size)}: NCCL and MPI need more for the ranks of one host"
    container = view.machine.system.container
    evidence = f"size of the file system at /dev/shm{f', in a container ({container})' if container else ''}"
    yield view.finding("CB2401", "warning", what, evidence, shared_memory.REMEDY)


def numa_unknown(view: MachineView) -> Iterator[Finding]:
    """CB2402: GPUs or RDMA devices without a NUMA node on bare metal with several nodes: -1 means unknown, not node 0."""
    if view.virtual_machine is not False or len(view.machine.numa_nodes) < 2:
        return
    parts = [*((gpu.key, f"GPU {gpu.key}") for gpu in view.machine.gpus), *((nic.key, nic.name) for nic in view.rdma)]
    without_numa = [name for key, name in parts if view.distances.numa_of(key) is None]
    if without_numa:
        evidence = f"numa_node is -1 or missing; the machine has {plural(len(view.machine.numa_nodes), 'NUMA node')}"
        remedy = (
            "update the firmware; until then look the slot up in the board's manual and bind ranks by hand (`numactl --cpunodebind=NODE`)"
        )
        yield view.finding("CB2402", "note", f"the NUMA node of {listed(without_numa)} is unknown", evidence, remedy)


def doubts(view: MachineView) -> Iterator[Finding]:
    """CB2403: unreliable values of a source."""
    for text in view.machine.doubts[:_MOST_DOUBTS]:
        yield _doubt(view, "CB2403", text, f"sources: {listed(view.machine.sources)}")
    if len(view.machine.doubts) > _MOST_DOUBTS:
        more = len(view.machine.doubts) - _MOST_DOUBTS
        yield _doubt(view, "CB2403", f"{plural(more, 'more doubt')} of the same sources", "`collbench probe` lists them all")


def disagreements(view: MachineView) -> Iterator[Finding]:
    """CB2404: sources that report different values of one fact."""
    disputes = view.machine.disagreements
    for dispute in disputes[:_MOST_DOUBTS]:
        evidence = f"{dispute.taken_from} (taken) and {dispute.other_from}"
        yield _doubt(view, "CB2404", f"{dispute.path}: {dispute.taken} or {dispute.other}?", evidence)
    if len(disputes) > _MOST_DOUBTS:
        text = f"{plural(len(disputes) - _MOST_DOUBTS, 'more disagreement')} between the same sources"
        yield _doubt(view, "CB2404", text, "`collbench probe --format json` lists them all")


def _doubt(view: MachineView, code: str, what: str, evidence: str) -> Finding:
    remedy = "compare with the machine itself: `collbench probe` there, or compare sysfs with lspci"
    return view.finding(code, "note", what, evidence, remedy)


RULES = (small_shm, numa_unknown, doubts, disagreements)
