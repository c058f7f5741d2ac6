"""Speed and memory that collbench promises, measured again by anyone: `python -m tests.benchmarks`.

A figure is the median over launches, and a claim of speed a ratio or difference of paired, interleaved launches; both with the
rank-based 95 % interval. `pytest tests/benchmarks` only sees that the harnesses run: a test that asserts times fails on busy machines.
"""
