"""Measurements, as ratios of figures taken in one run: machines differ, ratios less."""
