"""Bronze: the topics that land."""

from sluice import bronze

flights = bronze.topic("flights", meaning="The events of each flight: scheduled, departed, arrived, cancelled.")
weather = bronze.topic("weather", meaning="Hourly weather observations at New York's three airports.")
aircraft = bronze.topic("aircraft", meaning="The registry of aircraft.")
