"""What further libraries lack."""

from __future__ import annotations

from collbench.plugins.libraries import hip
from tests.messages import Message

MESSAGES: dict[str, Message] = {
    "no HIP": hip.NoHip(),
    "HIP fails": hip.HipFailed("hipGetDeviceCount: HIP error 3: initialization error"),
    "no AMD GPU": hip.NoAmdGpu(),
}
