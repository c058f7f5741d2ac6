"""Backends of further libraries: Horovod, JAX, TensorFlow, torchcomms, RCCL, UCC, oneCCL, NIXL and ZeroMQ."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="libraries",
    summary="backends of further libraries: Horovod, JAX, TensorFlow, torchcomms, RCCL, UCC, oneCCL, NIXL and ZeroMQ",
    hooks={"software_findings": "collbench.plugins.libraries.ucc.findings:examined_ucc"},
)
