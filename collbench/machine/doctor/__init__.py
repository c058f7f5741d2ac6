"""What is wrong with the machines before anything is measured: findings with their evidence and remedy.

To add a rule:
1. Write a function `name(view: View) -> Iterator[Finding]` in the module of its subject (pcie, nics, counters, gpus, host, paths); over
   all nodes of a job `(views)` in between, over a log of NCCL or
   RCCL `(log, views)` in logs (paths) and log_startup. Its docstring starts with a new code: "CB2109: ...".
2. Append it to the tuple at that module's end (RULES, JOB_RULES): `examine` runs it.
   What this shell and this host are set to is not in a View: `software` and `job_settings`.
3. Give the code a page in pages.toml. `collbench explain` shows it; a test fails without it.
4. Test in tests/doctor that it is found, with its evidence, and that a healthy machine is not accused. Without its facts it yields nothing.
"""
