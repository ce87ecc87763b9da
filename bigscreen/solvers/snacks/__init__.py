"""Steps on rows drawn at random: Snacks, and Pegasos (maths.md 5.9)."""
