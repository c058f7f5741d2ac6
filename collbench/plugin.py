"""The contract of plug-ins: what a capability outside the core brings, each part as "module:object", so that a start imports none of them.

Built-in plug-ins are the packages of `collbench.plugins`. Other packages name their Plugin in the entry point "collbench.plugins";
single backends and operations have entry points of their own. A built-in plug-in may be deleted: then its commands, kinds of runs and
page sections are absent, and everything else works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import walk_tb
from typing import Any

import msgspec

from collbench.errors import UsageError

GROUP = "collbench.plugins"
# In the order of pages and first screens.
BUILTIN = (
    "completion", "hunt", "training", "load", "kv", "traces", "predict", "overlap", "channels", "importers", "store", "deploy",
    "libraries", "plot", "selftest", "joblogs", "serve", "mpibench", "drawings",
    "alternatives", "tune", "groups", "certify",
)  # fmt: skip
_PACKAGE = "collbench.plugins"
_warned: set[str] = set()


class RecordFile(msgspec.Struct, frozen=True):
    """A file of a run folder whose lines are other records than rows of cases.

    name        "pairs.jsonl"
    unit        what a line is: "round" or "row"
    has_cases   whether a line may have cases in the file of cases, written before it; its "cases" is their number
    named_by    the field that names a line in a timeline; "": timelines do not have the lines
    more_files  other files of such a run, whose rows are never part of its results
    """

    name: str
    unit: str
    has_cases: bool = False
    named_by: str = ""
    more_files: tuple[str, ...] = ()


class Plugin(msgspec.Struct, frozen=True):
    """A capability outside the core. Places are "module:object".

    name       of the plug-in; a built-in one is the package collbench.plugins.NAME
    summary    what it is for, in one line
    commands   by command: the place of its `cli.command.CommandSpec`, or of a function that adds it to the parser, `add(commands)`
    records    by command that stores runs of its own, and continues them with --resume: the file with their records
    kinds      places of the kinds of stored runs that it brings: objects of `collbench.report.kinds.RunKind`
    sections   by place of a section of the page, a function of `collbench.report.material.Material`: the section that it follows
    concerns   places of functions that yield the concerns about a Material
    tables     places of tables of `collbench.read`'s runs: objects of `collbench.api.frames.DeclaredTable`
    api        by name the places of what it adds to the Python API: "autopsy" is `collbench.autopsy`; "Runs.kv" is a method or property
               of the runs that `collbench.read` returns
    modes      by mode of measuring the place of its object of `collbench.measuring.mode.MeasurementMode`
    backends   by name the places of classes of `collbench.backends.backend.Backend`; those of other packages have an entry point each
    hooks      by name of a hook of the core: the place of a function that the core calls there (`hooks_of` says where)
    needs      the names of other plug-ins that it imports: without one of them it is not there, either
    """

    name: str
    summary: str
    commands: Mapping[str, str] = msgspec.field(default_factory=dict)
    records: Mapping[str, RecordFile] = msgspec.field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    sections: Mapping[str, str] = msgspec.field(default_factory=dict)
    concerns: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    api: Mapping[str, str] = msgspec.field(default_factory=dict)
    modes: Mapping[str, str] = msgspec.field(default_factory=dict)
    backends: Mapping[str, str] = msgspec.field(default_factory=dict)
    hooks: Mapping[str, str] = msgspec.field(default_factory=dict)
    needs: tuple[str, ...] = ()


class BrokenEntry(UsageError):
    """A plug-in that cannot be used.

    plugin   the name of its entry point; place: "module:object", as the entry point has it
    defect   what is wrong, after the subject "plug-in 'name' (place)": "does not load (ImportError: …)"
    remedy   what the user can do
    """

    def __init__(self, plugin: str, place: str, defect: str, remedy: str) -> None:
        super().__init__(f"plug-in '{plugin}' ({place}) {defect}: {remedy}")
        self.plugin, self.place, self.defect, self.remedy = plugin, place, defect, remedy


class EntryPoint(msgspec.Struct, frozen=True):
    """An entry point of another package: {name = "module:object"}.

    package   the package's name in pip
    clash     why it cannot be selected by its name; "" where the name is unique
    """

    name: str
    point: Any
    package: str
    clash: str = ""

    def load(self) -> Any:
        """Return the object of the entry point. Raises BrokenEntry for any exception of its module."""
        if self.clash:
            raise self.broken(self.clash, f"rename its entry point, or uninstall {self.package}")
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:
            raise self.broken(f"does not load ({_line(error)})") from error

    def broken(self, defect: str, remedy: str = "") -> BrokenEntry:
        """Return the error with this defect, such as "contains no Operation"."""
        return BrokenEntry(self.name, self.point.value, defect, remedy or f"fix or uninstall {self.package}")

    def tried(self, what: str, call: Any) -> Any:
        """Return what a call of the plug-in returns. Raises BrokenEntry for any exception."""
        try:
            return call()
        except (Exception, SystemExit) as error:
            raise self.broken(f"raises in {what} ({_line(error)})") from error


def entries(group: str, taken: Collection[str]) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by the name that users type: the entry point's, or name@package where that is one of `taken`."""
    if not _is_declared(group):
        return {}
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        package = point.dist.name if point.dist else "the package that provides it"
        other, is_taken = found.get(point.name), point.name in taken
        clash = "has a name that collbench itself uses" if is_taken else ""
        if other and not clash:
            clash = f"has the same name as a plug-in of package {other.package}"
        found[f"{point.name}@{package}" if is_taken else point.name] = EntryPoint(point.name, point, package, clash)
    return found


def _is_declared(group: str) -> bool:
    """Whether an installed package may declare plug-ins of a group. Most have none, and importlib.metadata takes a fifth of a start."""
    for folder in sys.path:
        if Path(folder).is_file():  # a zip archive: only importlib.metadata reads it
            return True
        for file in Path(folder).glob("*-[iI][nN][fF][oO]/entry_points.txt"):
            with suppress(OSError):
                if f"[{group}]".encode() in file.read_bytes():
                    return True
    return False


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def failed_plugin(error: BaseException) -> str | None:
    """Return the plug-in and the error in one sentence if an exception passed through a plug-in's code, else None.

    "plug-in 'ring' (entry point collbench.backends, ring_code:Ring, of ring-maker 1.2) failed: ValueError: no ranks". If the code has
    several entry points, they are those of the class that failed, or all.
    """
    from importlib.metadata import entry_points

    where: list[tuple[str, str]] = []  # (package, class or function), innermost last
    cause: BaseException | None = error
    while cause:
        for frame, _ in walk_tb(cause.__traceback__):
            where.append((str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_qualname.partition(".")[0]))
        cause = cause.__cause__ or cause.__context__
    known = [point for group in (GROUP, "collbench.backends", "collbench.operations") for point in entry_points(group=group)]
    known = [point for point in known if point.module.partition(".")[0] in {package for package, _ in where} - {"collbench"}]
    named = [point for point in known if (point.module.partition(".")[0], point.attr) in where] or known
    texts = [
        f"'{point.name}' (entry point {point.group}, {point.value}{f', of {point.dist.name} {point.dist.version}' if point.dist else ''})"
        for point in named
    ]
    return f"plug-in {' or '.join(texts)} failed: {_line(error)}" if texts else None


# The plug-ins that are there: built-in ones in the order of BUILTIN, then those of other packages.


@cache
def _loaded() -> tuple[dict[str, Plugin], dict[str, BrokenEntry]]:
    """Return (plug-ins by name, errors of broken plug-ins by name)."""
    plugins: dict[str, Plugin] = {}
    broken: dict[str, BrokenEntry] = {}
    for name in BUILTIN:
        package = f"{_PACKAGE}.{name}"
        try:
            plugins[name] = import_module(package).PLUGIN
        except ModuleNotFoundError as error:
            if error.name not in (package, _PACKAGE):
                raise
    for name, entry in entries(GROUP, plugins).items():
        try:
            plugins[name] = _checked(entry)
        except BrokenEntry as error:
            broken[name] = error
    while lacking := [name for name, plugin in plugins.items() if not plugins.keys() >= set(plugin.needs)]:
        for name in lacking:
            del plugins[name]
    return plugins, broken


def _checked(entry: EntryPoint) -> Plugin:
    """Return the Plugin of an entry point. Raises BrokenEntry for anything else."""
    plugin = entry.load()
    if not isinstance(plugin, Plugin):
        raise entry.broken(f"is not a collbench.plugin.Plugin, but of type {type(plugin).__name__}")
    return plugin


def plugins() -> dict[str, Plugin]:
    """Return the plug-ins that are there, by name."""
    return _loaded()[0]


def package_of(plugin: Plugin) -> str:
    """Return the package of a plug-in with its version: "collbench 1.0"."""
    from collbench import __version__

    if plugin.name in BUILTIN:
        return f"collbench {__version__}"
    entry = entries(GROUP, ()).get(plugin.name)
    return "" if entry is None else f"{entry.package} {entry.point.dist.version}".strip()


def broken_plugins() -> Mapping[str, BrokenEntry]:
    """Return the errors of plug-ins of other packages that cannot be used, by name."""
    return _loaded()[1]


def commands() -> Mapping[str, str]:
    """Return by command the place of its specification, or of the function that adds it. Of two plug-ins the first one has it."""
    places: dict[str, str] = {}
    for plugin in plugins().values():
        for command, place in plugin.commands.items():
            places.setdefault(command, place)
    return places


@cache
def record_files() -> Mapping[str, RecordFile]:
    """Return by command the files of run folders that plug-ins bring."""
    return {command: file for plugin in plugins().values() for command, file in plugin.records.items()}


def api() -> Mapping[str, str]:
    """Return by name the places of what plug-ins add to the Python API."""
    return {name: place for plugin in plugins().values() for name, place in plugin.api.items()}


def loaded(place: str) -> Any:
    """Return the object at "module:object". Imports its module. Raises BrokenEntry if that of another package cannot be imported."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        package = module.partition(".")[0]
        if package == "collbench":
            raise
        raise BrokenEntry(package, place, f"does not load ({_line(error)})", f"fix or uninstall {package}") from error


def loaded_parts(places: Iterable[str]) -> Iterator[Any]:
    """Yield the objects at these places. One that is broken is left out, with a warning that names it, once."""
    for place in places:
        try:
            part = loaded(place)
        except BrokenEntry as error:
            if place not in _warned:
                _warned.add(place)
                sys.stderr.write(f"collbench: warning: {error}\n")
            continue
        yield part


def measurement_mode(name: str) -> Any:
    """Return the MeasurementMode of this name; None if no plug-in brings it."""
    places = [plugin.modes[name] for plugin in plugins().values() if name in plugin.modes]
    return next(loaded_parts(places), None)


def hooks_of(hook: str) -> list[Callable[..., Any]]:
    """Return the functions of all plug-ins for a hook of the core. The core calls

    completed_words()               -> by option or argument its possible values, for the completion of shells
    software_findings(host, env)    -> doctor's findings about the software of this host
    probe_options(parser, group)      when it adds the options of `probe`; of those in the group one is possible
    probe(arguments)                  -> exit code of `probe`; None if the options do not ask for what the plug-in does
    probe_views(parser)               when it adds the options of `probe` that follow --format
    probed(machines, arguments)       when `probe` has printed the machines
    machine_drawings(machines, ceiling) -> a section of a page about machines without a run, with what limits the ceiling marked
    page_style()                      -> the style sheet of what a plug-in adds to pages
    read_files(files, folder, *, format, ranks, nodes, operation, dtype)
                                    -> the run folders, below this folder, of imported files of other tools, for `collbench.read`
    run_options(parser)               when it adds the options of a command that can read runs of a store
    check_run_options(arguments)      and raises UsageError for an option that needs `--store`
    selected_runs(arguments, names)   -> (where they are, the runs that names and options select); None without `--store`
    runs_for_report(arguments)        -> `report.runs.RunsInFolders` that the options of `report` select; None without `--store`
    report_options(parser)            when it adds the options of `report` for files
    report_views(parser)              when it adds the options of `report` that follow --format
    report(arguments)                 -> exit code of `report`; None if the options ask for nothing of the plug-in
    report_writer(arguments)          -> function(tables, err) that writes what the options of `report` ask for
    gate_options(parser)              when it adds the options of `gate`
    gate(arguments)                   -> exit code of `gate`; None if the options ask for nothing of the plug-in
    doctor_options(parser)            when it adds the options of `doctor`
    doctor(arguments)                 -> exit code of `doctor`; None if the options ask for nothing of the plug-in
    mpi_benchmark(program, arguments) -> a command line of collbench for one of OSU or IMB
    compare_options(parser)           when it adds the further runs of `compare`
    compare(arguments, margin)        -> exit code of `compare`
    alternatives(tables)              -> `report.material.OtherComparison` of runs without a case in common; else None
    answer_remark(table)              -> a sentence below the answer of a run with its rows; "" for none
    record_kinds()                    -> kinds of records besides those of kinds of runs, whose columns `explain` has
    compared_load(cases)              -> sentences of `compare` about cases under load
    hunt_groups(source, hosts, nodes, cliques) -> `GroupStage` of the plug-in hunt, for --groups
    figure_kinds()                    -> by name of a kind of figure a function of the runs that returns its panels (of the plug-in plot)
    """
    return list(loaded_parts(plugin.hooks[hook] for plugin in plugins().values() if hook in plugin.hooks))
