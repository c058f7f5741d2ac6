"""Untrusted XML: what is parsed, and what is rejected before it costs time or memory."""

from __future__ import annotations

import pytest

from collbench.machine.readers import hwloc, nccl_xml
from collbench.machine.readers.text import LONGEST_TAG, FileLimits, Unreadable, top_element

LIMITS = FileLimits("a machine's file", "save it again", characters=4 << 20, depth=5, elements=50)
WITH_DOCTYPE = FileLimits("a machine's file", "save it again", 4 << 20, depth=5, elements=50, doctype=True)


def refused(text: str, limits: FileLimits = LIMITS) -> str:
    with pytest.raises(Unreadable) as why:
        top_element(text, "f\x1b.xml", limits)
    assert str(why.value).startswith("f?.xml ")
    assert str(why.value).endswith(": save it again")
    return str(why.value).removeprefix("f?.xml ").removesuffix(": save it again")


def test_the_top_element_with_all_below_it() -> None:
    top = top_element('\ufeff \n<a b="1">x<c>&lt;&#65;</c><!-- note --></a>', "f", LIMITS)
    assert (top.tag, top.attrib, top.text, [(child.tag, child.text) for child in top]) == ("a", {"b": "1"}, "x", [("c", "<A")])


def test_a_doctype_is_read_where_the_kind_has_one_and_entities_nowhere() -> None:
    text = '<!DOCTYPE a SYSTEM "a.dtd"><a/>'
    assert top_element(text, "f", WITH_DOCTYPE).tag == "a"
    assert "broken XML" in refused(text)
    for entity in ('<!ENTITY e "ee">', '<!ENTITY e SYSTEM "file:///etc/passwd">'):
        assert "broken XML" in refused(f"<!DOCTYPE a [{entity}]><a>&e;</a>", WITH_DOCTYPE)


@pytest.mark.parametrize("text", ["", " ", "text", "<a>", "<a></b>", "<a/><a/>", "\x00", "\ud800"])
def test_what_is_no_xml(text: str) -> None:
    assert refused(text).startswith("is broken XML (")


def test_depth_elements_and_size_are_bounded() -> None:
    assert "nests deeper" in refused("<a>" * 6)
    assert "more elements" in refused("<a>" + "<b/>" * 50 + "</a>")
    assert "has 5 Mi characters" in refused(" " * (5 << 20))


LONG = "x" * LONGEST_TAG


@pytest.mark.parametrize("tag", [f"<a b='{LONG}'/>", f"<a b='{'>' * LONGEST_TAG}'/>", f"<a {LONG}='1'/>", f"<b{LONG}/>"], ids=range(4))
def test_a_tag_longer_than_any_machines_is_refused(tag: str) -> None:
    assert "tag longer than 1 Mi " in refused(tag)


def test_a_token_is_parsed_once_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed in blocks, a token of n characters costs n²: 24 Mi of them took 14 s. Counted here: the blocks that expat is fed."""
    from defusedxml.ElementTree import XMLParser

    fed: list[int] = []
    feed = XMLParser.feed
    monkeypatch.setattr(XMLParser, "feed", lambda parser, data: (fed.append(len(data)), feed(parser, data))[1])
    comment = "<a><!--" + ">" * (1 << 20) + "--></a>"
    assert top_element(comment, "f", LIMITS).tag == "a"
    assert fed == [len(comment)]


@pytest.mark.parametrize(("reader", "text"), [(hwloc, "<topology a='{}'/>"), (nccl_xml, "<system a='{}'/>")], ids=["hwloc", "nccl"])
def test_both_readers_refuse_a_long_tag(reader, text: str) -> None:
    with pytest.raises(Unreadable, match=r"^m .*tag longer than 1 Mi"):
        reader.read(text.format(LONG), "m")
