"""Files: atomic outputs, records with checksums, checkpoints, work folders, remote paths."""
