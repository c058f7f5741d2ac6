"""Make the request of `collbench run` from a suite and the command line.

Keys of the suite become the options of the same name. They have the lowest precedence: COLLBENCH_* variables and typed
options replace them in every sweep.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.backends.registry import backend_names, check_name
from collbench.cli.configuration import parse_configured, read_configuration
from collbench.cli.options import OperationOptions
from collbench.cli.parser import Parser, from_environment, options_typed
from collbench.cli.request import default_backends, make_sweep, pairs_of_launches, request_of
from collbench.errors import UsageError
from collbench.measuring.request import TaskRequest
from collbench.operations.suite import Suite, SuiteSweep, check_names, concerns, operations_of, operations_with, read_suite
from collbench.operations.sweep import Sweep, Sweeps

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo

# Keys of a sweep with values that one option takes together. Values of other keys are combined with each other.
_TOGETHER = {"backends": "backend", "sizes": "sizes", "dtypes": "dtype", "redops": "redop", "roots": "root", "algorithms": "algorithms",
             "protocols": "protocols", "registrations": "registration", "calls": "calls",
             "pairs": "pairs"}  # fmt: skip
_ONE_BY_ONE = {"devices": "device", "modes": "mode", "buffers": "buffers", "window": "window", "split": "split", "traffic": "traffic",
               "skew": "skew", "streams": "streams"}  # fmt: skip
_PLACED = {True: [("in_place", True)], False: [("out_of_place", True)], "both": [("out_of_place", True), ("in_place", True)]}
_SHORT_SIZES = ("minimum", "maximum", "factor", "increment")
_OF_A_SWEEP = frozenset({*_TOGETHER.values(), *_ONE_BY_ONE.values(), *_SHORT_SIZES, "in_place", "out_of_place"})
_MOST_COMBINATIONS = 2000
_NOT_FOR_NAMES = re.compile(r"[^\w.-]+")


def suite_request(parser: Parser, options: OperationOptions, argv: Sequence[str], info: LaunchInfo | None) -> TaskRequest:
    """Return the request of `collbench run SUITE …`. Raises UsageError."""
    make_sweep(options, ())  # raises for invalid typed options, before an error can name the suite
    for name in options.backend or ():
        check_name(name)
    suite = read_suite(options.suite)
    check_names(suite, backend_names())
    _check_number(suite)
    typed = options_typed(parser, list(argv[1:])) & _OF_A_SWEEP
    _check_use(typed, suite)
    whole = _parsed(parser, argv, _variables(suite.run.items()), suite, "[run]")
    starts = pairs_of_launches(whole.launches, os.environ) if whole.gdr_check else whole.launches
    sweeps = [sweep for table in suite.sweeps for sweep in _sweeps_of(table, parser, argv, suite)]
    default_names = () if all(sweep.backends for sweep in sweeps) else default_backends(os.environ)
    named = tuple(dict.fromkeys(name for sweep in sweeps for name in sweep.backends))
    plain = (bool, int, float, list, type(None))
    values = {name: getattr(options, name) for name in sorted(typed)}
    facts = suite.as_json() | {"typed": {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}}
    word = _NOT_FOR_NAMES.sub("-", suite.name)[:60].strip("-") or "suite"
    request = request_of(
        whole, Sweeps(tuple(sweeps), default_names, once=bool(typed)), argv, info, command=f"run-{word}", suite=facts,
        backends=tuple(dict.fromkeys((*default_names, *named))), requested=frozenset(named), launches=starts,
        configuration=_in_use(whole.configuration, suite),
    )  # fmt: skip
    return TaskRequest(request)


def _check_number(suite: Suite) -> None:
    """Raise UsageError for a suite that would need hours of preparation before the first measurement."""
    number = sum(prod(len(choices) for key, choices in table.values.items() if key in _ONE_BY_ONE) for table in suite.sweeps)
    if number > _MOST_COMBINATIONS:
        raise UsageError(
            f"suite {suite.files[0]} makes {number:,} combinations of {', '.join(_ONE_BY_ONE)}, but at most {_MOST_COMBINATIONS:,} are "
            "supported: shorten its lists"
        )


def _check_use(typed: set[str], suite: Suite) -> None:
    """Raise UsageError for an option that applies to no sweep. A variable may have been set for other commands."""
    chosen = operations_of([name for table in suite.sweeps for name in table.values["operations"]])
    for key, option in (_TOGETHER | _ONE_BY_ONE).items():
        if option in typed and not concerns(key, chosen) and not os.environ.get(f"COLLBENCH_{option.upper()}"):
            raise UsageError(f"--{option} is for {operations_with(key)}, but suite {suite.name} has none: remove it")


def _sweeps_of(table: SuiteSweep, parser: Parser, argv: Sequence[str], suite: Suite) -> Iterator[Sweep]:
    """Yield the sweeps of a table: all combinations of its lists. Values from [defaults] that its operations do not have are left out."""
    operations = operations_of(table.values["operations"])
    values = {key: value for key, value in table.values.items() if concerns(key, operations)}
    for combination in _combinations(values):
        options = _parsed(parser, argv, _variables([*suite.run.items(), *combination]), suite, table)
        try:
            sweep = make_sweep(options, operations)
        except UsageError as error:
            raise UsageError(f"suite {table.file}, {table.where}: {error}") from error
        yield replace(sweep, backends=tuple(dict.fromkeys(options.backend or ())), where=table.where, place=table.place)


def _combinations(values: Mapping[str, list[Any]]) -> Iterator[list[tuple[str, Any]]]:
    """Yield the options and values of each combination."""
    fixed = [(_TOGETHER[key], ",".join(map(_text, listed))) for key, listed in values.items() if key in _TOGETHER]
    choices = [[(_ONE_BY_ONE[key], value) for value in listed] for key, listed in values.items() if key in _ONE_BY_ONE]
    if "in_place" in values:
        choices.append(_PLACED[values["in_place"][0]])
    return ([*fixed, *chosen] for chosen in product(*choices))


def _variables(options: Any) -> dict[str, str]:
    """Return options as text, as COLLBENCH_* variables have them."""
    return {f"COLLBENCH_{name.upper()}": _text(value) for name, value in options}


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _parsed(parser: Parser, argv: Sequence[str], variables: Mapping[str, str], suite: Suite, where: SuiteSweep | str) -> OperationOptions:
    """Return the options, in which typed ones replace the suite's. Raises UsageError with the place in the suite."""
    try:
        typed = from_environment(parser, list(argv[1:]), variables)
        arguments = parse_configured(read_configuration(argv[1:], os.environ), "run", parser, typed, parser.parse_args)
    except UsageError as error:
        place = f"{where.file}, {where.where}" if isinstance(where, SuiteSweep) else f"{suite.files[0]}, {where}"
        raise UsageError(f"suite {place}: {error}") from error
    return dataclasses.replace(OperationOptions.of(arguments), command="run")


def _in_use(configuration: Mapping[str, Any] | None, suite: Suite) -> Mapping[str, Any] | None:
    """Return the facts of the configuration file without the values that every sweep replaces."""
    if configuration is None:
        return None
    replaced = [{(_TOGETHER | _ONE_BY_ONE).get(key, key) for key in table.values} for table in suite.sweeps]
    values = {name: text for name, text in configuration["values"].items() if name.replace("-", "_") not in set.intersection(*replaced)}
    return {**configuration, "values": values} if values else None
