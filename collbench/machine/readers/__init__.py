"""One reader per source: text of a tool, a file format, or a part of the kernel's files, each to a `Machine`."""
