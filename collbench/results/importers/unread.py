"""Names tools whose output looks familiar and cannot be imported, so that a refusal says which tool it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

_FORMS = {
    "p2pBandwidthLatencyTest (CUDA samples)": r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|Bidirectional P2P=\w+ Bandwidth",
    "bandwidthTest (CUDA samples)": r"\[CUDA Bandwidth Test\] - Starting",
    "SuperBench": r'"(?:nccl-bw|rccl-bw|ib-validation|gpu-copy-bw)[\w:-]{0,40}/|superbench',
    "iperf3": r"\[ ID\] Interval\s+Transfer\s+(?:Bitrate|Bandwidth)|Connecting to host \S+, port \d+",
    "qperf": r"^(?:tcp|ud|rc|uc|rds|sctp|udp)_(?:bw|lat|bi_bw):\s*$",
    "netperf": r"MIGRATED (?:TCP|UDP)_\w+ (?:TEST|REQUEST)|TCP STREAM TEST",
    "sockperf": r"sockperf: ",
    "TransferBench": r"TransferBench v?\d",
    "rocm_bandwidth_test": r"RocmBandwidthTest Version|Inter-Device (?:Access|Numa Distance)|Unidirectional copy peak bandwidth",
    "nccom-test (AWS Neuron)": r"nccom-test|size\(B\)\s+count\(elems\)\s+type\s+time",
    "hccl_test (Ascend)": r"data_size\(Bytes\)\s*:?\s*\|?\s*aveg_time|the minbytes is \d+, maxbytes is \d+",
    "UCC's ucc_perftest": r"Collective:\s+\w+|Count\s+Size\s+Time, us",
    "NVSHMEM's perftest": r"nvshmem.{0,40}perftest|#(?:put|get|shmem)_(?:bw|latency|p_\w+)|\|\s*size\(B\)\s*\|.{0,40}latency\(us\)",
    "oneCCL's benchmark": r"oneCCL benchmark|#bytes\s+#repetitions\s+t_min\[usec\]\s+t_max\[usec\]\s+t_avg\[usec\]\s+stddev\[%\]",
    "NCCL's Inspector for Prometheus (set NCCL_INSPECTOR_PROM_DUMP=0)": r"^nccl_(?:bus_bandwidth_gbs|p2p_\w+|collective_\w+)\{",
    "nixlbench": r"nixlbench|Block Size \(B\)\s+Batch Size\s+B/W",
    "mpiBench": r"START mpiBench",
    "netgauge": r"\bNetgauge v",
    "Sandia's SMB": r"job size:\s+\d+|msgsize\s+iterations\s+iter_t\s+work_t",
    "a web page": r"<!DOCTYPE html|<html|<HTML",
}
_LONGEST = 4096


def unread_tool(lines: Sequence[str]) -> str | None:
    """The name of the tool that printed these lines, if it is known and cannot be imported."""
    forms = ((name, re.compile(form)) for name, form in _FORMS.items())
    return next((name for name, form in forms if any(form.search(line[:_LONGEST]) for line in lines)), None)
