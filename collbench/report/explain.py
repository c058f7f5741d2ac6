"""`collbench explain WORD`: a page for every word that collbench prints.

Findings of the doctor have pages in machine/doctor/pages.toml, flags in results/flags.py, operations their summary, and facts (reasons,
limits, notes) the docstring of their class; columns, outcomes, exit codes and terms in explain.toml beside this module. A test checks that
none is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

import collbench
from collbench.errors import UsageError
from collbench.plugin import hooks_of
from collbench.report.frame import Column, Frame, Line, table_lines
from collbench.report.screen import wrapped

if TYPE_CHECKING:
    from collbench.reason import Fact

_FILE = Path(__file__).with_name("explain.toml")
# The groups of pages, and by which name `collbench explain` lists the words of a group.
GROUPS = {
    "column": "columns and fields",
    "flag": "flags of rows",
    "operation": "operations",
    "outcome": "outcomes",
    "exit": "exit codes",
    "finding": "findings of doctor, probe and hunt",
    "reason": "reasons, limits and notes",
    "term": "terms",
}
TOPICS = {
    "columns": "column", "flags": "flag", "operations": "operation", "outcomes": "outcome", "exit-codes": "exit", "findings": "finding",
    "reasons": "reason", "terms": "term",
}  # fmt: skip


class WordPage(msgspec.Struct, frozen=True, kw_only=True):
    """The page of `explain` for a word.

    group    one of GROUPS
    word     as in the list of words
    names    other spellings that find the page
    beginnings   how texts begin that the page explains: "NIC " of "NIC 4×100 Gb/s"
    means    what it means
    check    how to check it by hand; may be empty
    remedy   what to do; may be empty
    sources  URLs
    """

    group: str
    word: str
    means: str
    title: str = ""
    names: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()
    check: str = ""
    remedy: str = ""
    sources: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the page as text."""
        head = f"{self.word}  {self.title}" if self.title else f"{self.word} ({GROUPS[self.group]})"
        if not (self.check or self.remedy):
            return [head, "", *self.means.strip().splitlines()]
        parts = (("what it means", self.means), ("check by hand", self.check), ("remedy", self.remedy))
        body = [line for name, text in parts if text for line in ("", f"{name}:", *(f"  {each}" for each in text.strip().splitlines()))]
        sources = [f"source: {url}" for url in self.sources]
        return [head, *body, "", *sources] if sources else [head, *body]


@cache
def pages() -> tuple[WordPage, ...]:
    """Return all pages, by group."""
    found = [*word_table(), *_of_operations(), *_of_flags(), *_of_findings(), *_of_facts()]
    found += _of_columns({plain(name) for each in found for name in (each.word, *each.names)})
    return tuple(sorted(found, key=lambda page: (list(GROUPS).index(page.group), page.word)))


def page(word: str) -> list[WordPage]:
    """Return the pages of a word, in any case ("-", "_" and spaces are alike); a few words have several, such as `latency`.

    Texts that begin as those of a page, such as "NIC 4×100 Gb/s", have that page.
    Raises UsageError for a word without a page; it names the most similar words and topics.
    """
    wanted = plain(word)
    if found := [each for each in pages() if wanted in map(plain, (each.word, *each.names))]:
        return found
    if found := [each for each in pages() if word.startswith(each.beginnings)]:
        return found
    from collbench.machine.readers.text import printable

    spelled = {plain(name): name for each in pages() for name in (each.word, *each.names)}
    spelled |= {plain(topic): topic for topic in TOPICS}
    near = [spelled[each] for each in get_close_matches(wanted, spelled, 3)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"unknown word '{printable(word, 40)}': {hint}`collbench explain` lists the topics")


_COLUMNS: tuple[Column[WordPage], ...] = (
    Column("", "", lambda each: f"  {each.word}"),
    Column("", "", lambda each: each.title or _first_sentence(each.means), wrap=True),
)


_EXAMPLES = {
    "columns": "busbw, expected, quality",
    "flags": "few_samples, drift",
    "operations": "allreduce, alltoallv",
    "outcomes": "slower, inconclusive",
    "exit-codes": "1, 3",
    "findings": "CB2101, CB6101",
    "reasons": "no_gpu, few_launches",
    "terms": "launch, start-skew",
}  # of the words of each topic
_TOPIC_COLUMNS: tuple[Column[str], ...] = (
    Column("", "", lambda topic: f"  {topic}"),
    Column("", "", lambda topic: f"{GROUPS[TOPICS[topic]]}: {len(_words_of(topic))}, such as {_EXAMPLES[topic]}", wrap=True),
)


def topic_lines(width: int | None = None) -> Iterator[Line]:
    """Yield the list of topics: a line for each group of words."""
    yield from table_lines(Frame(_TOPIC_COLUMNS, list(TOPICS), title="topics of the words that collbench prints:"), width)
    yield Line("")
    yield from wrapped([Line("`collbench explain TOPIC` lists the words of a topic, `collbench explain WORD` explains a word.")], width)


def lines_about(words: str, width: int | None = None) -> Iterator[Line]:
    """Yield the pages of a word, then the list of the words if it is a topic. Raises UsageError for an unknown word."""
    topic = next((topic for topic in TOPICS if plain(topic) == plain(words)), None)
    if topic is None:
        yield from _page_lines(page(words), width)
        return
    same_word = [each for each in pages() if plain(words) in map(plain, (each.word, *each.names))]
    if same_word:
        yield from _page_lines(same_word, width)
        yield Line("")
    yield from table_lines(Frame(_COLUMNS, _words_of(topic), title=f"{GROUPS[TOPICS[topic]]}:"), width)


def _words_of(topic: str) -> list[WordPage]:
    return [each for each in pages() if each.group == TOPICS[topic]]


def _page_lines(found: Sequence[WordPage], width: int | None) -> Iterator[Line]:
    """Yield the pages of a word, with an empty line between them."""
    for number, each in enumerate(found):
        yield from [Line("")] if number else []
        texts = list(each.lines())
        if width is not None and max(map(len, texts), default=0) > width:
            texts = list(_paragraphs(texts))
        yield from wrapped(map(Line, texts), width)


_SOURCE_WIDTH = 90  # shorter lines of a page end a paragraph


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of prose joined, so that a terminal of another width can break them; lists and commands stay."""
    paragraph, last, is_prose = "", "", True
    for text in texts:
        if text.endswith(":") and not text.startswith(" "):
            is_prose = text == "what it means:"
        continues = is_prose and len(last) >= _SOURCE_WIDTH and bool(text) and not text.lstrip().startswith(("- ", "|"))
        last = text
        if continues:
            paragraph += f" {text.strip()}"
            continue
        if paragraph:
            yield paragraph
        paragraph = text
        if not text:
            yield text
    if paragraph:
        yield paragraph


def plain(word: str) -> str:
    """Return a word in the spelling by which pages are found."""
    return " ".join(word.replace("_", " ").replace("-", " ").lower().split())


def _first_sentence(text: str) -> str:
    whole = " ".join(text.split())
    first, dot, _ = whole.partition(". ")
    short = first + ("." if dot else "")
    return short if len(short) <= 100 else f"{short[:97].rsplit(' ', 1)[0]} …"


def word_table() -> Iterator[WordPage]:
    """Yield the pages of columns, outcomes, exit codes and terms."""
    import tomllib

    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    declared = _declared_columns()
    for group, words in table.items():
        for word, fields in words.items():
            if "means" in fields:
                lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
                yield WordPage(group=group, word=word, **{**fields, **lists})
            elif word in declared:  # else its plug-in is not there
                yield replace(declared[word], names=(*declared[word].names, *fields["names"]))


def _of_operations() -> Iterator[WordPage]:
    """Yield a page for each command that measures operations, with the names that rows have."""
    from collbench.operations.registry import commands

    for command, measured in commands().items():
        several = len(measured) > 1
        means = "\n".join(f"{f'{each.name}: ' if several else ''}{each.summary[:1].upper()}{each.summary[1:]}." for each in measured)
        yield WordPage(group="operation", word=command, names=tuple(each.name for each in measured), means=means)


def _declared_columns() -> dict[str, WordPage]:
    """Return by name the page of each declared column: of rows of cases, or with a line for each other kind of records with it.

    Its word is its key of `--columns`, else its name; other names are its headings, with and without the unit.
    """
    from collbench.columns import RUN_COLUMN, ValueColumn, described, value_columns
    from collbench.report.cases import COLUMN_OF_KEY
    from collbench.report.kinds import ResultKind, kinds
    from collbench.results.row import Row

    keys = {column.title: column.key for column in COLUMN_OF_KEY.values()}
    pages: dict[str, WordPage] = {}

    def add(value: ValueColumn, means: str, word: str) -> None:
        found = pages.get(value.name) or WordPage(group="column", word=word, means="", names=(value.name,))
        headings = [value.title, value.title.removesuffix(" GB/s").removesuffix(" µs")] if value.title else []
        pages[value.name] = replace(found, means=f"{found.means}\n{means}".strip(), names=(*found.names, *headings))

    others = [kind for kinds_of in hooks_of("record_kinds") for kind in kinds_of()]
    for kind in [*(kind.declared for kind in kinds().values() if isinstance(kind, ResultKind)), *others]:
        for value in kind.values:
            add(value, f"`collbench {kind.name}`: {described(value.about, value.unit)}", value.name)
    for value in value_columns(Row):
        pages.pop(value.name, None)
        add(value, described(value.about, value.unit), keys.get(value.title) or value.name)
    return pages | {name: WordPage(group="column", word=name, means=spec.about) for name, spec in RUN_COLUMN.items()}


def _of_columns(explained: Collection[str]) -> Iterator[WordPage]:
    """Yield a page for each declared column that no other page explains, with the names that no other page has."""
    for name, page_of_column in _declared_columns().items():
        if plain(name) not in explained:
            names = [other for other in page_of_column.names if plain(other) not in explained]
            yield replace(page_of_column, names=tuple(names))


def _of_flags() -> Iterator[WordPage]:
    from collbench.results.flags import FLAGS

    for flag in FLAGS.values():
        yield WordPage(
            group="flag", word=flag.code, names=(flag.name,), means=f"{flag.text[0].upper()}{flag.text[1:]}.", remedy=flag.action
        )


def _of_findings() -> Iterator[WordPage]:
    from collbench.machine.doctor.finding import pages as of_doctor

    for code, each in of_doctor().items():
        yield WordPage(
            group="finding",
            word=code,
            title=each.title,
            means=each.means,
            check=each.check,
            remedy=each.remedy,
            sources=tuple(each.sources),
        )


def _of_facts() -> Iterator[WordPage]:
    """Yield a page for each kind of fact, from its docstring."""
    from collbench.plugin import plugins
    from collbench.reason import Fact, Text

    for module in walk_packages(collbench.__path__, "collbench."):
        parts = module.name.split(".")[1:]
        if parts[0] == "plugins" and len(parts) > 1 and parts[1] not in plugins():  # it lacks a plug-in that it needs
            continue
        file = Path(collbench.__path__[0], *parts).with_suffix(".py")
        # Other modules are not imported, since some need missing libraries.
        if parts[0] not in ("cli", "__main__") and file.is_file() and "collbench.reason import" in file.read_text(encoding="utf-8"):
            import_module(module.name)
    kinds: Iterator[type[Fact]] = _kinds(Fact)
    for kind in kinds:
        if kind is not Text:
            yield WordPage(group="reason", word=str(kind.__struct_config__.tag), means=kind.__doc__ or "")


def _kinds(base: type[Fact]) -> Iterator[type[Fact]]:
    for kind in base.__subclasses__():
        if "text" in vars(kind) or kind.render is not base.render:
            yield kind
        yield from _kinds(kind)
