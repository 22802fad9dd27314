"""The verb: land topics, refresh datasets, and pass over all of them in order."""
