"""Blocks of rows of an exact kernel machine, its rows sharded."""
