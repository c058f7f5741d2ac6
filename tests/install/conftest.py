"""An index on a disk, made once."""

import pytest

from tests.install.site import needed, repack


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """The wheels of all that collbench[mpi] asks for, and of what builds it."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in needed():
        repack(name, folder)
    return folder
