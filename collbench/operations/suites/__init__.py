"""A suite: a TOML list of what is measured in one launch. Its form is suite.schema.json; quick, full and gate lie beside it."""
