"""The kernels, compiled once for all tests of the folder."""

import pytest

from tests.conftest import cannot
from tests.cuda_kernels.serial import Serial, build


@pytest.fixture(scope="session")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Serial:
    """The kernels as g++ compiles them."""
    library = build(tmp_path_factory.mktemp("kernels"))
    if library is None:
        cannot("no g++: apt-get install g++")
    return Serial(library)
