"""Readers: from files and arrays to blocks of rows."""
