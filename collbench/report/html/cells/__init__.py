"""What lies behind single cells: samples, their spread, the machine's state meanwhile."""
