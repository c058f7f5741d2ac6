"""Which path it took and under which conditions: what the machine did while a cell was measured."""
