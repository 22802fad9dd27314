"""Bronze: the topics that land."""

from sluice import bronze

flights = bronze.topic("flights", meaning="What became known of each flight: scheduled, departed, arrived, cancelled.")
weather = bronze.topic("weather", meaning="Hourly observations at the three airports of New York.")
aircraft = bronze.topic("aircraft", meaning="The registry of aircraft.")
