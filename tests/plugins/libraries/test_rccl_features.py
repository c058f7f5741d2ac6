"""What RCCL has of the parts of NCCL."""

from collbench.backends.nccl.library import features_of
from collbench.plugins.libraries.rccl import RCCL
from tests.backends.nccl.test_nccl_library import Library


def test_parts_of_rccl_are_known_by_its_functions_alone():
    found = features_of(Library("ncclCommRevoke", version=(2, 30, 7), dialect=RCCL))
    parts = {part.name: part.available for part in found}
    assert {part.since for part in found} == {""}
    assert (parts["revoked communicator"], parts["device API"]) == (True, False)
    assert not {"network calls of kernels (GIN)", "collectives by copy engines"} & set(parts)
