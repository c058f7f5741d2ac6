"""What NCCL and RCCL print while they start becomes typed facts."""

from __future__ import annotations

import pytest

from collbench.machine.readers.nccl_log import NcclLog, read
from collbench.machine.readers.nccl_startup import (
    CollNet,
    Communicator,
    FabricBroken,
    FabricMember,
    HostProblem,
    ListedGpu,
    LogLibrary,
    LogSetting,
    NcclPlugin,
    NvSwitch,
    Platform,
    PluginKind,
    PluginState,
    SlowGraphLink,
    StartupFact,
    TopologyFile,
)

IB = "n1:7:8 [0] NCCL INFO Using network IB\n"


def log(line: str) -> NcclLog:
    """A log with this line; one that does not name NCCL is on its own, as the library prints it."""
    return read(IB + (line if line.startswith(("#", "NCCL version", "RCCL version", "[")) else f"n1:7:8 [0] NCCL INFO {line}"), "nccl.log")


@pytest.mark.parametrize(
    ("line", "library", "number", "text"),
    [
        ("NCCL version 2.27.3+cuda12.9", LogLibrary.NCCL, "2.27.3", "2.27.3+cuda12.9"),
        ("[2026-05-06 20:00:45] n1:7:8 [0] NCCL INFO NCCL version 2.99.1+cuda12.9", LogLibrary.NCCL, "2.99.1", "2.99.1+cuda12.9"),
        ("NCCL version 2.28.9-1+cuda13.0", LogLibrary.NCCL, "2.28.9", "2.28.9-1+cuda13.0"),
        ("NCCL version 2.16.3a0+cuda11.7", LogLibrary.NCCL, "2.16.3", "2.16.3a0+cuda11.7"),
        ("# nccl-tests version 2.17.6 nccl-headers=22602 nccl-library=22703", LogLibrary.NCCL, "2.27.3", "2.27.3"),
        ("# nccl-tests version 2.9.0 nccl-headers=2708 nccl-library=2708", LogLibrary.NCCL, "2.7.8", "2.7.8"),
        ("RCCL version : 2.22.3-develop:1a2b3c4", LogLibrary.RCCL, "2.22.3", "2.22.3-develop:1a2b3c4"),
        ("RCCL version 2.20.5+hip6.2 HEAD:1a2b3c4+", LogLibrary.RCCL, "2.20.5", "2.20.5+hip6.2"),
        ("[2026-05-06 20:00:45] n1:7:8 [0] NCCL INFO RCCL version : 2.27.7-HEAD:0a1b2c3", LogLibrary.RCCL, "2.27.7", "2.27.7-HEAD:0a1b2c3"),
    ],
)
def test_the_version_of_any_form(line: str, library: LogLibrary, number: str, text: str) -> None:
    found = log(line)
    assert found.release is not None
    assert (found.library, found.version, found.release.text) == (library, number, text)


@pytest.mark.parametrize("line", ["NCCL git version stable 1a2b3c4d", "Ring 00 : 0 -> 1", "NCCL version unknown"])
def test_lines_that_are_not_a_version(line: str) -> None:
    assert log(line).version is None


def test_the_library_counts_more_than_nccl_tests() -> None:
    both = read(f"# nccl-tests version 2.17.6 nccl-headers=22602 nccl-library=22602\nNCCL version 2.27.3+cuda12.9\n{IB}", "nccl.log")
    assert both.version == "2.27.3"


@pytest.mark.parametrize(
    "line",
    [
        "NET/Plugin: Could not find: librccl-net.so. Using internal net plugin.",
        "ROCr version 1.18",
        "Kernel version: 6.8.0-136-generic",
        "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol",
        "Hipruntime version: 70226015, firmware version: 2650",
    ],
)
def test_messages_that_only_rccl_prints(line: str) -> None:
    assert log(line).library is LogLibrary.RCCL


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("NCCL_IB_GID_INDEX set by environment to 3.", LogSetting("NCCL_IB_GID_INDEX", "3")),
        ("NCCL_IB_HCA set by environment to =mlx5_0,mlx5_1", LogSetting("NCCL_IB_HCA", "=mlx5_0,mlx5_1")),
        ("Comm config minCTAs reset to NCCL_MIN_CTAS=32", LogSetting("NCCL_MIN_CTAS", "32")),
        ("comm 0x5 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0", Communicator(16, 2, 8, False)),
        ("comm 0x5 rank 3 nRanks 8 nNodes 1 localRanks 8 localRank 3 MNNVL 1", Communicator(8, 1, 8, True)),
        ("comm 0x5 rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0", Communicator(4, 4, 1, None)),
        ("MNNVL busId 0x901000 fabric UUID 4ac1.77be cliqueId 0x7ffe state 3 healthMask 0x55", FabricMember("4ac1.77be", "0x7ffe", 3)),
        ("MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration", FabricBroken(8)),
        ("NET/Plugin: Loaded net plugin IBplug v10 (v10)", NcclPlugin(PluginKind.NET, PluginState.LOADED, "IBplug v10", 10)),
        ("NET/Plugin: Loaded collnet plugin SHARP (v8)", NcclPlugin(PluginKind.COLLNET, PluginState.LOADED, "SHARP", 8)),
        ("TUNER/Plugin: Using nccl_ofi_tuner (v3)", NcclPlugin(PluginKind.TUNER, PluginState.LOADED, "nccl_ofi_tuner", 3)),
        ("NET/Plugin: Could not find: libnccl-net.so", NcclPlugin(PluginKind.NET, PluginState.ABSENT)),
        ("PROFILER/Plugin: Could not find: libnccl-profiler.so. ", NcclPlugin(PluginKind.PROFILER, PluginState.ABSENT)),
        ("PROFILER/Plugin: Loaded Inspector (v4)", NcclPlugin(PluginKind.PROFILER, PluginState.LOADED, "Inspector", 4)),
        (
            "NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and lower are not supported.",
            NcclPlugin(PluginKind.NET, PluginState.UNSUITABLE),
        ),
        ("External network plugin libnccl-net.so is unsupported", NcclPlugin(PluginKind.NET, PluginState.UNSUITABLE)),
        ("              + PCI[0.2] - PCI/0-65000 (104c823200000000)", SlowGraphLink(0.2, "PCI", True)),
        ("+ PCI[0.2] - GPU/0-68000 (5)", SlowGraphLink(0.2, "GPU", False)),
        ("              + NVL[370.8] - NVS/0-0", NvSwitch()),
        ("rank 0 Connected CollNet", CollNet()),
        ("Loading topology file /opt/site/topo.xml", TopologyFile("/opt/site/topo.xml")),
        ("NET/OFI Running on p9.48xlarge platform, topology file /x/y.xml", Platform("p9.48xlarge")),
        ("#  Rank  3 Group  0 Pid   4711 on   node7 device  3 [0000:65:00] NVIDIA H200", ListedGpu("node7", 3, "NVIDIA H200")),
        ("NET/IB : No device found.", HostProblem.NO_RDMA_DEVICE),
        ("Failed to open libibverbs.so[.1]", HostProblem.NO_VERBS_LIBRARY),
        ("Count not open libibverbs.so.1", HostProblem.NO_VERBS_LIBRARY),
    ],
)  # fmt: skip
def test_a_message_and_its_fact(line: str, fact: StartupFact) -> None:
    assert fact in {found for _, found in log(line).startup}


@pytest.mark.parametrize(
    "line",
    [
        "Count not open libibverbs.so",  # the name for developers; libibverbs.so.1 is tried after it
        "NET/Plugin: Failed to find ncclNetPlugin_v10 symbol.",
        "NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol.",
        "+ PCI[24.0] - GPU/0-68000 (5)",
        "+ PCI[0.2] - NIC/0-67000",  # a management port may be as slow as that
        "TUNER/Plugin: Failed to find ncclTunerPlugin_v4 symbol.",
    ],
)
def test_messages_without_a_fact(line: str) -> None:
    assert log(line).startup == ()


def test_of_several_communicators_the_largest_is_the_job() -> None:
    small = "n1:7:8 [0] NCCL INFO comm 0x5 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
    found = read(IB + small.replace("nRanks 4 nNodes 1", "nRanks 16 nNodes 4") + small, "nccl.log")
    assert found.job == Communicator(16, 4, 4, False)
