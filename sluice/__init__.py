"""Sluice turns event logs into tables that can be trusted."""
