"""Which rows need no further look, and why that is safe."""
