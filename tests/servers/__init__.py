"""Servers of one's own, for tests that need real ones."""
