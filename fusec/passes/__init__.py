"""Passes: pure functions from one level to the next; pipeline.py holds their order."""
