"""The GPU check: its steps, how it finds or installs packages, and the bundle for a machine without network."""
