"""One dual record for every machine, the recipes that make it, points and certificates."""
