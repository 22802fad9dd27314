"""Seats of flights: commands, the events that they become, and the state that follows."""
