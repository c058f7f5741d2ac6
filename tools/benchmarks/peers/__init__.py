"""collbench compared with OSU, IMB and gloo's own benchmark, in interleaved launches: `python -m tools.benchmarks.peers`.

You build their programs and give the paths; this repository has no part of them.
"""
