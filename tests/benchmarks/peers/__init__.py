"""collbench beside OSU, IMB and gloo's own benchmark, launched in turns: `python -m tests.benchmarks.peers`.

Their programs are the user's: paths are given, nothing of theirs lies here.
"""
