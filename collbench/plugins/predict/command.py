"""collbench predict: the times of a job on more nodes, from runs at several smaller node counts."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, add_format, percent, positive, words
from collbench.cli.selection import add_selection, selected_runs
from collbench.errors import FINE, NO_VERDICT, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collbench.plugins.predict.prediction import Prediction
    from collbench.results.row import Row

_SUMMARY = "times on more nodes, from runs at several smaller node counts"
_ABOUT = (
    "fits models of the time over the number of nodes to runs at 3 node counts or more. The error of the largest count, predicted from the "
    "smaller ones, is always shown. A case with a larger error than --max-error is refused. Exit code 0: something predicted, 3: all "
    "refused."
)
_LARGEST_COUNT = 10_000_000


_HELP = HelpEntry(
    follows="probe",
    examples=(
        ("predict runs --nodes 64", "64 nodes, from the runs at 2, 4, 8 and 16 in a folder"),
        ("predict runs --nodes 64,128 --operation allreduce --html predicted.html", "one operation, with a page"),
        ("predict --store runs.sqlite --nodes 64 --max-error 10 --format csv", "from a store, with a smaller maximum error"),
    ),
)


def add_predict(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "predict", _SUMMARY, call_predict, _add_predict_options, entry=_HELP, description=_ABOUT)


def node_counts(text: str) -> tuple[int, ...]:
    """Return the ascending node counts of "24,32". Raises an argparse error for anything else."""
    counts = tuple(sorted({positive(word) for word in words(text)}))
    if counts[0] < 2 or counts[-1] > _LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"'{text}' is not valid: use node counts from 2 to {_LARGEST_COUNT:,}, e.g. 24,32")
    return counts


def _add_predict_options(parser: Parser) -> None:
    runs = (
        "a run's folder, or a folder with runs below it; with --store the name of a run, an allocation or a label; or one prediction.json, "
        "to show it again"
    )
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help=runs)
    parser.add_argument("--nodes", metavar="N[,N…]", type=node_counts, help="the node counts to predict")
    parser.add_argument("--operation", metavar="NAMES", type=words, default=[], help="only these operations")
    parser.add_argument("--backend", metavar="NAMES", type=words, default=[], help="only these backends")
    parser.add_argument("--sizes", metavar="SIZES", help="only these sizes: 64K, 8,1M or 1K-1M (powers of two)")
    most = "largest error at the largest measured node count, predicted from the smaller ones (default: 15)"
    parser.add_argument("--max-error", metavar="PERCENT", type=percent, help=most)
    parser.add_argument("--out", metavar="FILE", type=Path, help="also write prediction.json, with the measured times and all errors")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write one HTML page, with charts")
    add_format(parser, "table", "csv")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    add_selection(parser)


def call_predict(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the predictions; return 0, or 3 if all are refused. Raises UsageError."""
    from collbench.plugins.predict.prediction import MAX_ERROR, predict
    from collbench.plugins.predict.text import prediction_lines, write_prediction
    from collbench.report.screen import PlainScreen, wants_color, width_of
    from collbench.report.writers import Outputs, check_file, confirm_written
    from collbench.untrusted import uncollected

    Outputs(html=arguments.html).check()
    if arguments.out:
        check_file(arguments.out, "--out")
    painted = wants_color(sys.stdout, arguments.color)
    stored = _stored(arguments)
    with uncollected():
        prediction = stored or predict(_chosen(rows_of(arguments), arguments), arguments.nodes, arguments.max_error or MAX_ERROR)
    if not prediction.cases:
        why = f" ({', '.join(f'{count} {name}' for name, count in prediction.unused.items())})" if prediction.unused else ""
        raise UsageError(f"no row can be used for a prediction{why}: name runs on 2 nodes or more, and import logs with --nodes")
    if arguments.out:
        write_prediction(prediction, arguments.out)
    if arguments.html:
        from collbench.plugins.predict.page import write_prediction_page

        write_prediction_page(prediction, arguments.html)
    confirm_written((arguments.out, arguments.html), sys.stderr)
    screen = PlainScreen(sys.stdout, sys.stderr, painted)
    for line in prediction_lines(prediction, arguments.format, width_of(sys.stdout)):
        screen.data(line)
    return FINE if prediction.predicted else NO_VERDICT


def _stored(arguments: argparse.Namespace) -> Prediction | None:
    """Return the prediction of a stored prediction.json; None if runs are named. Raises UsageError."""
    from collbench.plugins.predict.prediction import read_prediction

    if arguments.store or len(arguments.runs) != 1 or arguments.runs[0].suffix != ".json":
        if arguments.nodes is None:
            raise UsageError("--nodes is missing: give the node counts to predict, e.g. --nodes 24,32")
        return None
    options_for_runs = {
        "--nodes": arguments.nodes, "--operation": arguments.operation, "--backend": arguments.backend, "--sizes": arguments.sizes,
        "--max-error": arguments.max_error,
    }  # fmt: skip
    for option, value in options_for_runs.items():
        if value:
            raise UsageError(f"{option} is for runs, not for the stored prediction {arguments.runs[0]}: leave out {option}")
    return read_prediction(arguments.runs[0])


def rows_of(arguments: argparse.Namespace) -> list[Row]:
    """Return the rows of all runs that the options name. Raises UsageError without any."""
    from collbench.plugins.predict.prediction import rows_below

    selected = selected_runs(arguments, arguments.runs)
    if selected:
        return [row for run in selected[1] for row in run.rows]
    if not arguments.runs:
        raise UsageError("predict needs runs at several node counts: name their folders, or a folder with runs below it")
    return rows_below(arguments.runs)


def _chosen(rows: Sequence[Row], arguments: argparse.Namespace) -> list[Row]:
    """Return the rows that the options select. Raises UsageError if none is left."""
    from collbench.plugins.predict.prediction import asked_size
    from collbench.results.row import stored_operation
    from collbench.units import parse_sizes

    names = set(map(stored_operation, arguments.operation))
    sizes = set(parse_sizes(arguments.sizes)) if arguments.sizes else None
    chosen = [
        row
        for row in rows
        if (not names or row.operation in names)
        and (not arguments.backend or row.backend in arguments.backend)
        and (sizes is None or asked_size(row) in sizes)
    ]
    if rows and not chosen:
        raise UsageError(
            "no row has the operations, backends and sizes of --operation, --backend and --sizes: `collbench report RUN` lists them"
        )
    return chosen
