"""One reader per source: each converts a tool's text, a file format, or a part of the kernel's files to a `Machine`."""
