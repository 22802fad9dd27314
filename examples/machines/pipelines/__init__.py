"""Machines that report their temperatures: which of them run hot, and which have fallen silent."""
