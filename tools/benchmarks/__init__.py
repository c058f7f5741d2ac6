"""Benchmarks of collbench's own speed and memory; to repeat them: `python -m tools.benchmarks`.

A figure is the median over launches. A claim of speed is a ratio or difference of paired, interleaved launches. Both have the
rank-based 95 % interval. `pytest tests/benchmarks` only checks that the harnesses run: a test that asserts times fails on busy machines.
"""
