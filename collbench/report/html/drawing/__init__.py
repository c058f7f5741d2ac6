"""How charts are drawn: matplotlib, axes, words, and the SVG that comes of it."""
