"""What tests read in a picture of a page."""

import re
from collections.abc import Iterator
from xml.etree import ElementTree


def texts(drawing: str) -> list[str]:
    """Return the texts of an SVG."""
    return [element.text or "" for element in ElementTree.fromstring(drawing).iter() if element.tag == "text"]


def outside(drawing: str) -> list[tuple[float, float]]:
    """Return the points of an SVG that are outside its view box. Relative parts of paths, and turned elements, are not read."""
    root = ElementTree.fromstring(drawing)
    width, height = (float(length) for length in root.attrib["viewBox"].split()[2:])
    return [(x, y) for x, y in _points(root) if not (-0.1 <= x <= width + 0.1 and -0.1 <= y <= height + 0.1)]


def _points(root: ElementTree.Element) -> Iterator[tuple[float, float]]:
    for element in root.iter():
        if "transform" in element.attrib:
            continue
        if "x" in element.attrib:
            yield float(element.attrib["x"]), float(element.attrib["y"])
        yield from ((float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", element.attrib.get("d", "")))


def marks(drawing: str) -> dict[str, list[tuple[float, float]]]:
    """Return by name of a mark (the gid of matplotlib's artist) the first point of each of its shapes, in pixels from the top left."""
    points: dict[str, list[tuple[float, float]]] = {}
    for group in ElementTree.fromstring(drawing).iter("g"):
        paths = " ".join(path.attrib["d"] for path in group.iter("path"))
        points.setdefault(group.attrib["data-mark"], []).extend(
            (float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", paths)
        )
    return points
