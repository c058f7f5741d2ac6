"""Backends of further libraries: Horovod, JAX, TensorFlow, torchcomms, RCCL, UCC, oneCCL, NIXL and ZeroMQ."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="libraries",
    summary="backends of further libraries: Horovod, JAX, TensorFlow, torchcomms, RCCL, UCC, oneCCL, NIXL and ZeroMQ",
    backends={
        "zmq": "collbench.plugins.libraries.zmq:ZmqBackend",
        "horovod": "collbench.plugins.libraries.horovod:HorovodBackend",
        "tensorflow": "collbench.plugins.libraries.tensorflow:TensorFlowBackend",
        "jax": "collbench.plugins.libraries.jax:JaxBackend",
        "torchcomms": "collbench.plugins.libraries.torchcomms:TorchCommsBackend",
        "rccl": "collbench.plugins.libraries.rccl:RcclBackend",
        "ucc": "collbench.plugins.libraries.ucc.backend:UccBackend",
        "oneccl": "collbench.plugins.libraries.oneccl.backend:OneCclBackend",
        "nixl": "collbench.plugins.libraries.nixl:NixlBackend",
    },
    hooks={"software_findings": "collbench.plugins.libraries.ucc.findings:examined_ucc"},
)
