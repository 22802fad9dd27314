"""The flights lakehouse: a year of departures from New York, with the weather and the aircraft of each."""
