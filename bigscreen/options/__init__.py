"""What fits can be asked for: each option with its values, its users and its help."""
