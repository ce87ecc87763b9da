"""Screening: safe rules that fix dual variables at a bound before or during a solve."""
