"""From files and arrays to a data set on disk."""
