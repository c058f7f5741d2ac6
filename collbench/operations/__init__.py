"""Operations: what each moves and must deliver (one module per operation), test cases, sweeps and suites."""
