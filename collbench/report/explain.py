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
        lines = [head]
        for name, text in parts:
            if text:
                lines += ["", f"{name}:", *(f"  {line}" for line in text.strip().splitlines())]
        if self.sources:
            lines += ["", *(f"source: {url}" for url in self.sources)]
        return lines

    @property
    def spellings(self) -> dict[str, str]:
        """Return its word and its other names as written, by their plain spelling."""
        return {plain(name): name for name in (self.word, *self.names)}


@cache
def pages() -> tuple[WordPage, ...]:
    """Return all pages, by group."""
    all_pages = [*word_table(), *_operation_pages(), *_flag_pages(), *_finding_pages(), *_fact_pages()]
    all_pages += _column_pages({name for page in all_pages for name in page.spellings})
    return tuple(sorted(all_pages, key=lambda page: (list(GROUPS).index(page.group), page.word)))


def page(word: str) -> list[WordPage]:
    """Return the pages of a word, in any case ("-", "_" and spaces are alike); a few words have several, such as `latency`.

    Texts that begin as those of a page, such as "NIC 4×100 Gb/s", have that page.
    Raises UsageError for a word without a page; it names the most similar words and topics.
    """
    wanted = plain(word)
    pages_of_word = [page for page in pages() if wanted in page.spellings] or [page for page in pages() if word.startswith(page.beginnings)]
    if pages_of_word:
        return pages_of_word
    from collbench.machine.readers.text import printable

    spellings = {name: written for page in pages() for name, written in page.spellings.items()}
    spellings |= {plain(topic): topic for topic in TOPICS}
    near = [spellings[name] for name in get_close_matches(wanted, spellings, 3)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"unknown word '{printable(word, 40)}': {hint}`collbench explain` lists the topics")


_COLUMNS: tuple[Column[WordPage], ...] = (
    Column("", "", lambda page: f"  {page.word}"),
    Column("", "", lambda page: page.title or _first_sentence(page.means), wrap=True),
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
    wanted = plain(words)
    topic = next((topic for topic in TOPICS if plain(topic) == wanted), None)
    if topic is None:
        yield from _page_lines(page(words), width)
        return
    pages_of_word = [page for page in pages() if wanted in page.spellings]
    if pages_of_word:
        yield from _page_lines(pages_of_word, width)
        yield Line("")
    yield from table_lines(Frame(_COLUMNS, _words_of(topic), title=f"{GROUPS[TOPICS[topic]]}:"), width)


def _words_of(topic: str) -> list[WordPage]:
    return [page for page in pages() if page.group == TOPICS[topic]]


def _page_lines(pages_of_word: Sequence[WordPage], width: int | None) -> Iterator[Line]:
    """Yield the pages of a word, with an empty line between them."""
    for number, page in enumerate(pages_of_word):
        if number:
            yield Line("")
        texts = page.lines()
        if width is not None and max(map(len, texts), default=0) > width:
            texts = list(_paragraphs(texts))
        yield from wrapped(map(Line, texts), width)


_SOURCE_WIDTH = 90  # shorter lines of a page end a paragraph


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Yield the lines of prose joined, so that a terminal of another width can break them; lists and commands stay."""
    paragraph = ""
    last = ""
    is_prose = True
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


def _operation_pages() -> Iterator[WordPage]:
    """Yield a page for each command that measures operations, with the names that rows have."""
    from collbench.operations.registry import commands

    for command, operations in commands().items():
        sentences = [(operation.name, f"{operation.summary[:1].upper()}{operation.summary[1:]}.") for operation in operations]
        means = "\n".join(f"{name}: {sentence}" if len(operations) > 1 else sentence for name, sentence in sentences)
        yield WordPage(group="operation", word=command, names=tuple(name for name, _ in sentences), means=means)


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
        page = pages.get(value.name) or WordPage(group="column", word=word, means="", names=(value.name,))
        headings = [value.title, value.title.removesuffix(" GB/s").removesuffix(" µs")] if value.title else []
        pages[value.name] = replace(page, means=f"{page.means}\n{means}".strip(), names=(*page.names, *headings))

    record_kinds = [kind.declared for kind in kinds().values() if isinstance(kind, ResultKind)]
    record_kinds += [kind for kinds_of_plugin in hooks_of("record_kinds") for kind in kinds_of_plugin()]
    for kind in record_kinds:
        for value in kind.values:
            add(value, f"`collbench {kind.name}`: {described(value.about, value.unit)}", value.name)
    for value in value_columns(Row):
        pages.pop(value.name, None)
        add(value, described(value.about, value.unit), keys.get(value.title) or value.name)
    return pages | {name: WordPage(group="column", word=name, means=spec.about) for name, spec in RUN_COLUMN.items()}


def _column_pages(explained: Collection[str]) -> Iterator[WordPage]:
    """Yield a page for each declared column that no other page explains, with the names that no other page has."""
    for column, page in _declared_columns().items():
        if plain(column) not in explained:
            yield replace(page, names=tuple(name for name in page.names if plain(name) not in explained))


def _flag_pages() -> Iterator[WordPage]:
    from collbench.results.flags import FLAGS

    for flag in FLAGS.values():
        means = f"{flag.text[0].upper()}{flag.text[1:]}."
        yield WordPage(group="flag", word=flag.code, names=(flag.name,), means=means, remedy=flag.action)


def _finding_pages() -> Iterator[WordPage]:
    from collbench.machine.doctor import finding

    for code, page in finding.pages().items():
        yield WordPage(
            group="finding",
            word=code,
            title=page.title,
            means=page.means,
            check=page.check,
            remedy=page.remedy,
            sources=tuple(page.sources),
        )


def _fact_pages() -> Iterator[WordPage]:
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
