"""Labels and units of columns, from names that carry their units (`departure_delay_minutes_avg`)."""

from dataclasses import dataclass

units = {
    "seconds": "s",
    "milliseconds": "ms",
    "ms": "ms",
    "minutes": "min",
    "hours": "h",
    "days": "days",
    "miles": "miles",
    "kilometres": "km",
    "kilometers": "km",
    "km": "km",
    "metres": "m",
    "meters": "m",
    "inches": "in",
    "mph": "mph",
    "kmh": "km/h",
    "fahrenheit": "°F",
    "celsius": "°C",
    "millibars": "mbar",
    "percent": "%",
    "euro": "€",
    "euros": "€",
    "eur": "€",
    "usd": "$",
    "dollars": "$",
    "cents": "cents",
    "bytes": "bytes",
    "kg": "kg",
    "grams": "g",
}
statistics = {"avg": "average", "mean": "average", "max": "maximum", "min": "minimum", "sum": "total", "p50": "median"}


@dataclass(frozen=True)
class Label:
    """What a reader is shown for a column; `unit` is empty where the name has none."""

    text: str
    unit: str

    @property
    def with_unit(self) -> str:
        return f"{self.text} ({self.unit})" if self.unit else self.text


def label_of(column: str) -> Label:
    """`departure_delay_minutes_avg` is "Departure delay, average" in "min"."""
    words = [word for word in column.split("_") if word]
    statistic = statistics.get(words[-1]) if len(words) > 1 else None
    if statistic:
        words = words[:-1]
    unit = units.get(words[-1], "") if len(words) > 1 else ""
    if unit:
        words = words[:-1]
    text = " ".join(words) or column
    text = text[:1].upper() + text[1:]
    return Label(f"{text}, {statistic}" if statistic else text, unit)
