"""Read files and arrays, check their rows, and write them to a store on disk."""
