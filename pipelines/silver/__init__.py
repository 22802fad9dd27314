"""Silver: each flight with the weather and the aircraft as of its scheduled departure."""
