"""Read the output of NetPIPE 3.7 (NPtcp): a ping-pong of two processes, a line for each size, with half of the round trip."""

import re

from collbench.plugins.importers.importer import ImportedTable, Importer, lines_with
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, missing
from collbench.plugins.importers.table import MICROSECONDS, Layout, TextColumn

# The number before a line ("  0:") is absent where it was taken for a tag of srun -l.
_LINE = re.compile(
    r"^\s*(?:\d{1,6}:)?\s*(?P<bytes>\d{1,18}) bytes\s+\d{1,18} times -->\s+[\d.]{1,18} Mbps in\s+(?P<usec>[\d.]{1,18}) usec\s*$"
)
_LAYOUT = Layout(columns=(TextColumn("bytes", "size", shown=False), TextColumn("usec", "time", MICROSECONDS, shown=False)), figures=_LINE)


def _runs(table, user_input, _contexts):
    statistic = "half of the round trip, the best of its trials"
    kind = RowKind("p2p_latency", "socket", "NetPIPE", "uint8", 2, user_input.nodes, statistic, mode="batched")
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION, MissingItem.VERIFICATION)]
    yield ImportedTable("netpipe", None, "NPtcp", statistic, table.rows(kind), missing=unknown, doubts=table.doubts())


NETPIPE = Importer("netpipe", "NetPIPE (NPtcp)", lines_with(_LINE, words=["bytes"]), _LAYOUT.tables, _runs, output="NetPIPE")
