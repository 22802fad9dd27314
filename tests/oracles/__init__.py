"""Plain-Python truth, which shares no code with the engine."""
