"""Receivers append to the log what others send, and acknowledge a record once the log has it."""
