"""The block solver: block decomposition of the exact kernel machine over sharded rows."""
