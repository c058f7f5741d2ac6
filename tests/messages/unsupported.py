"""Why a test case cannot run, a backend cannot be opened, or no GPU can be used."""

from __future__ import annotations

from collbench.backends import unavailable as backend
from collbench.device import unavailable as gpu
from collbench.operations import unsupported as case
from collbench.operations.registry import BrokenEntry

_INSTALL = "pip install 'collbench[mpich]'"
MESSAGES = {
    "case failed": case.CaseFailed("allocation", 3, "not enough memory"),
    "sizes rounded": case.SizesRounded("float64", 8, 16),
    "tuning ignored": case.TuningIgnored(("mpi", "gloo")),
    "too few ranks": case.TooFewRanks("sendrecv"),
    "not a power of two": case.NotPowerOfTwo("hypercube", 3),
    "no in-place form": case.NoInPlaceForm("alltoallv"),
    "redop undefined: bitwise": case.RedopUndefined("band", "float32"),
    "redop undefined: average": case.RedopUndefined("avg", "int32"),
    "average not representable": case.AverageNotRepresentable("float8_e4m3fn", 513, 512),
    "device unsupported": case.DeviceUnsupported("zmq", "cuda", ("cpu",)),
    "device unsupported, with the backend's reason": case.DeviceUnsupported("mpi", "cuda", ("cpu",), "mpi has no GPU here: no driver"),
    "operation unsupported": case.OperationUnsupported("gloo", "hypercube"),
    "operation unsupported: in place only": case.OperationUnsupported("gloo", "broadcast", "in place"),
    "operation unsupported, with a note": case.OperationUnsupported("jax", "barrier", note="it is an all-reduce"),
    "pairs only": case.PairsOnly("socket"),
    "redop unsupported": case.RedopUnsupported("MPI", "avg"),
    "redop unsupported in an operation": case.RedopUnsupported("jax", "max", "reducescatter", ("sum",)),
    "data type: reduce": case.DtypeUnsupported("MPICH 5.0.2", "bfloat16"),
    "data type: send": case.DtypeUnsupported("horovod", "uint16", "send", "alltoall"),
    "architecture unsupported": case.ArchitectureUnsupported("NCCL", "float8_e4m3fn", "sm_80", "9.0"),
    "version needed": case.VersionNeeded("NCCL", "symmetric memory (ncclCommWindowRegister)", "2.27", "2.23.4"),
    "one option": case.OptionUnsupported(("--streams",), "mpi", "socket"),
    "two options": case.OptionUnsupported(("--algorithms", "--protocols"), "mpi", "nccl"),
    "limit: count": case.LimitExceeded("socket", "streams between two ranks", 64),
    "limit: bytes": case.LimitExceeded("gRPC of tensorflow", "per message", 2**31 - 1, bytes=True),
    "group order": case.GroupOrderUnsupported("tensorflow", "allgather"),
    "shared memory: one window": case.SharedMemoryTooSmall("/dev/shm", 1, 2**30, 2**26),
    "shared memory: several windows": case.SharedMemoryTooSmall("/dev/shm", 2, 2**30, 2**26),
    "clock: enqueues": case.ClockUnsupported("nccl", enqueues=True),
    "clock: its own": case.ClockUnsupported("fast", enqueues=False),
    "not installed": backend.NotInstalled("mpi4py", _INSTALL),
    "not installed, needed by another": backend.NotInstalled("torch", "pip install torch", "horovod 0.28.1"),
    "unknown version": backend.UnknownVersion("tensorflow", "1.15", "2.x", "pip install tensorflow"),
    "does not load": backend.DoesNotLoad("pyzmq", "ImportError: libzmq.so.5", "pip install --force-reinstall pyzmq"),
    "wrong build": backend.WrongBuild("horovod", "0.28.1", "was built without torch", "build it with torch"),
    "misconfigured": backend.Misconfigured("JAX_PLATFORMS", "is 'tpu'", "unset JAX_PLATFORMS"),
    "library not found": backend.LibraryNotFound("MPI", "libmpi.so: cannot open shared object file", _INSTALL),
    "broken plug-in: backend": backend.BrokenPlugin("fast", "pack:Kind", "does not load (ImportError: no rings)", "fix or uninstall pack"),
    "broken plug-in: operation": lambda: BrokenEntry("swap", "pack:SWAP", "contains no Operation", "fix or uninstall pack"),
    "no driver": gpu.NoDriver(),
    "no cupy": gpu.NoCupy(),
    "several cupys": gpu.SeveralCupys(("cupy-cuda12x", "cupy-cuda13x")),
    "GPUs hidden": gpu.GpusHidden(),
    "no GPU from Slurm": gpu.NoGpuFromSlurm(),
    "driver too old for cupy": gpu.DriverTooOld("12.4", "13.2"),
    "driver too old for collbench": gpu.DriverTooOld("11.8", "13.2"),
    "fabric manager": gpu.FabricManagerNotRunning(),
    "CUDA failed": gpu.CudaFailed("cudaErrorUnknown"),
    "no GPU": gpu.NoGpu(),
    "GPU listed twice": gpu.GpuListedTwice("0,0"),
    "unknown GPU": gpu.UnknownGpu("0,7", "7"),
    "GPUs prohibited": gpu.GpusProhibited(),
}
