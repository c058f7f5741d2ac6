"""The built-in suites (quick, full, gate) and suite.schema.json: TOML lists of what one launch measures."""
