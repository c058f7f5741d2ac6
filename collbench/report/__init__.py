"""How it is shown: terminal, nccl-tests' text, CSV and JSON."""
