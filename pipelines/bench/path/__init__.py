"""Races of paths of C against cold fits of other libraries, one for each value."""
