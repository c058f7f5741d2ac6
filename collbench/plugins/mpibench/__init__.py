"""Command lines of the OSU benchmarks and of IMB-MPI1."""

from collbench.plugin import Plugin

PLUGIN = Plugin(
    name="mpibench",
    summary="command lines of the OSU benchmarks and of IMB-MPI1, with the meaning that they have there",
    hooks={"mpi_benchmark": "collbench.plugins.mpibench.options:arguments_of"},
)
