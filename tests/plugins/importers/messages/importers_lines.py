"""Usage errors of `import`, each with the command line that ends so."""

from __future__ import annotations

from tests.messages import Message
from tests.messages.cli import FILES, typed

TABLE = "# Collective test starting: all_reduce_perf_mpi\n  1073741824  268435456  float  sum  -1  5000.00  {}  0\n"
UNKNOWN_RANKS = f"{TABLE.format('214.75  375.81')}# Out of bounds values : 0 OK\n{TABLE.format('1.05  2.09')}"

LINES = """\
import nothing.log --out out
import other.txt --out out
import other.txt --as word --out out
import other.txt --as nccl-tests --out out
import other.txt --operation sum --out out
import run.json --out out
import run --out out
"""
MESSAGES: dict[str, Message] = {
    **{line: typed(line, FILES) for line in LINES.splitlines()},
    "import with --strict": typed("import two.log --out out --strict", {"two.log": UNKNOWN_RANKS}),
}
