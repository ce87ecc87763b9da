"""What a fit will need before it runs: its solver, where its features live, bytes by process."""
