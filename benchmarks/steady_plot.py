"""Latency, memory and files over time as one SVG of three panels, which needs no library to draw or to show."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

width, height, left, top = 760, 150, 60, 28
colours = ("#1f5fa8", "#c2571a", "#2e7d4f", "#7a4fa3", "#8a6d1d", "#3f8a8c", "#a83232", "#555555")
Lines = Mapping[str, Sequence[float]]


def plot(seconds: Sequence[Mapping[str, Any]]) -> str:
    """The three panels; `seconds` are the figures of each second."""

    def column(name: str) -> list[float]:
        return [float(each[name]) for each in seconds]

    tables = sorted(seconds[-1]["files"], key=lambda name: -seconds[-1]["files"][name])[: len(colours)]
    panels: dict[str, Lines] = {
        "event to gold, s": {"p99": column("gold_p99"), "p50": column("gold_p50")},
        "memory, MiB": {"JVM": column("jvm_mebibytes"), "driver": column("driver_mebibytes")},
        "files": {name: [float(each["files"][name]) for each in seconds] for name in tables},
    }
    drawn = [
        panel(title, lines, column("second"), number * (height + 2 * top))
        for number, (title, lines) in enumerate(panels.items())
    ]
    size = f'width="{width + 230}" height="{len(panels) * (height + 2 * top)}"'
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(drawn)}</svg>\n'


def panel(title: str, lines: Lines, times: Sequence[float], y: int) -> str:
    """One panel: its title, the greatest value and the last second at the axes, and each line with its name."""
    most = max((max(values) for values in lines.values()), default=0.0) or 1.0
    bottom = y + top + height
    parts = [
        f'<text x="{left}" y="{y + top - 8}" font-weight="bold">{escape(title)}</text>',
        f'<text x="{left - 6}" y="{y + top + 5}" text-anchor="end">{most:,.4g}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{left + width}" y="{bottom + 15}" text-anchor="end">{times[-1]:,.0f} s</text>',
        f'<path d="M{left},{y + top} V{bottom} H{left + width}" stroke="#999" fill="none"/>',
    ]
    for number, (name, values) in enumerate(lines.items()):
        points = " ".join(
            f"{left + width * time / times[-1]:.1f},{bottom - height * value / most:.1f}"
            for time, value in zip(times, values, strict=True)
        )
        colour = colours[number]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
        place = f'x="{left + width + 8}" y="{y + top + 12 + 16 * number}"'
        parts.append(f'<text {place} fill="{colour}">{escape(name)}</text>')
    return "".join(parts)
