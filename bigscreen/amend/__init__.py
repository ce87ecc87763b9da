"""Certified edits: rows leave, enter or change, and what is proved before anything is fitted."""
