"""Revisions, oldest first; each file name begins with its number."""
