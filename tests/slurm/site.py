"""ReFrame's configuration for the tests' Slurm, which keeps no accounts: jobs are asked for with squeue."""

site_configuration = {
    "systems": [
        {
            "name": "testbed",
            "hostnames": [".*"],
            "partitions": [{"name": "main", "scheduler": "squeue", "launcher": "srun", "environs": ["builtin"], "max_jobs": 1}],
        }
    ],
    "environments": [{"name": "builtin"}],
    "general": [{"poll_rate_max": 20, "use_login_shell": False}],
}
