"""Output for people: progress lines, tables, figures and HTML pages; and results as JSON."""
