"""Paths of C compared with as many cold fits of others."""
