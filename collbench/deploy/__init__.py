"""What a launcher is told: from a job (which command, how many nodes, ranks and GPUs) to one commented file per kind of launcher."""
