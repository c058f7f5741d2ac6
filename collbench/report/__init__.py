"""Output for users: results, verdicts, machines and plans as text, CSV, JSON and other formats."""
