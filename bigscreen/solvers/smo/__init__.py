"""SMO: sequential minimal optimisation of the exact kernel machine in one process."""
