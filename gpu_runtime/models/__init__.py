"""Model plugins. Each is found by its entry point and imported nowhere else."""
