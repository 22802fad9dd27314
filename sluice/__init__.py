"""Sluice turns event logs into tables you can trust."""
