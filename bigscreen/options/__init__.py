"""The options of a fit: each with its values, the machines that use it, and its help."""
