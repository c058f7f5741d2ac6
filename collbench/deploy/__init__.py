"""Files for cluster managers: jobs (one commented file per kind of launcher), and nodes to drain."""
