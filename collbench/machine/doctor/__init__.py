"""Checks of the machines before any measurement: findings with evidence and remedy.

To add a rule:
1. Write a function `name(view: MachineView) -> Iterator[Finding]` in the module of its subject (pcie, nics, gpus, host). Rules over all
   nodes of a job take `views` and are in compare or gpus; rules over a log of NCCL or RCCL are in the plug-in joblogs.
   The docstring starts with a new code: "CB2109: ...".
2. Append it to the tuple at that module's end (RULES, JOB_RULES): `examine` runs it.
   Settings of this shell and this host are not in a MachineView: see `examined` and `examined_software` in host.
3. Give the code a page in pages.toml, which `collbench explain` shows. A test fails without it.
4. Test in tests/doctor that the problem is found with its evidence, and that a healthy machine gives no finding.
   Without the facts that it needs, a rule yields nothing.
"""
