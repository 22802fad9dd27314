"""Silver: flights as a whole, each with the weather and the aircraft as they were at its scheduled departure."""
