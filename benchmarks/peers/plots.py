"""Plots as SVG, with logarithmic axes: costs of peers differ by orders of magnitude."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Told apart by those who see colours differently, on light and dark ground (Okabe and Ito).
colours = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7")
width, left, right, top = 900, 240, 60, 28
lane, gap = 13, 12
half_width, plot_height = 440, 170


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis of whole decades, from one place to another."""

    first: float
    last: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float], start: float, end: float) -> "Axis":
        """One of whole decades."""
        positive = [value for value in values if value > 0] or [1.0]
        first = math.floor(math.log10(min(positive)))
        last = max(math.ceil(math.log10(max(positive))), first + 1)
        return cls(first, last, start, end, tuple(10.0**power for power in range(first, last + 1)))

    @classmethod
    def at(cls, values: Iterable[float], start: float, end: float) -> "Axis":
        """One that has a tick at each of its values, two at least, and ends with them."""
        ticks = sorted(set(values))
        return cls(math.log10(ticks[0]), math.log10(ticks[-1]), start, end, tuple(ticks))

    def place(self, value: float) -> float:
        """Where a value is; none is before the axis."""
        share = (math.log10(max(value, 10.0**self.first)) - self.first) / (self.last - self.first)
        return self.start + share * (self.end - self.start)


def number(value: float) -> str:
    """Two digits that say something, or all of a larger number."""
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def colour(names: Mapping[str, str], peer: str) -> str:
    return colours[list(names).index(peer) % len(colours)]


def dots(
    title: str,
    values: Mapping[str, Mapping[str, float]],
    names: Mapping[str, str],
    wrong: Iterable[tuple[str, str]],
    unit: str,
) -> str:
    """A row for each workload with a lane for each peer; a dot is hollow where the rows are wrong."""
    peers = [peer for peer in names if any(peer in of for of in values.values())]
    row = len(peers) * lane + gap
    bottom = top + row * len(values)
    axis = Axis.of((value for of in values.values() for value in of.values()), left, width - right)
    parts = [text(0, 16, title, "title"), *grid(axis, top, bottom, f" {unit}")]
    for index, (workload, of) in enumerate(values.items()):
        begin = top + index * row
        parts.append(f"<line class='grid' x1='0' x2='{width}' y1='{begin}' y2='{begin}'/>")
        parts.append(text(0, begin + row / 2 + 4, workload))
        for number_of_lane, peer in enumerate(peers):
            if peer in of:
                y = begin + gap / 2 + (number_of_lane + 0.5) * lane
                parts.append(dot(axis.place(of[peer]), y, colour(names, peer), is_hollow=(workload, peer) in wrong))
                parts.append(text(axis.place(of[peer]) + 8, y + 4, number(of[peer])))
    return svg(title, width, bottom + 24, parts)


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], names: Mapping[str, str]) -> str:
    """A line for each peer, half as wide as a page; its last value stands beside it."""
    begin, end, bottom = 46, half_width - 50, top + plot_height
    points = [point for of in series.values() for point in of]
    x = Axis.at((across for across, _ in points), begin, end)
    y = Axis.of((up for _, up in points), bottom, top)
    parts = [text(0, 16, title, "title"), *grid(x, top, bottom)]
    for tick in y.ticks:
        parts.append(f"<line class='grid' x1='{begin}' x2='{end}' y1='{y.place(tick)}' y2='{y.place(tick)}'/>")
        parts.append(text(begin - 6, y.place(tick) + 4, f"{tick:,g}", "quiet", "end"))
    for peer, of in series.items():
        path = " ".join(f"{x.place(across):.1f},{y.place(up):.1f}" for across, up in of)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour(names, peer)}' stroke-width='2'/>")
        parts += [dot(x.place(across), y.place(up), colour(names, peer)) for across, up in of]
    ends = {peer: y.place(of[-1][1]) + 4 for peer, of in series.items()}
    for peer, height in apart(ends).items():
        parts.append(text(end + 8, height, number(series[peer][-1][1])))
    return svg(title, half_width, bottom + 24, parts, "half")


def apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Heights of texts, moved down where they would lie on each other."""
    found: dict[str, float] = {}
    for name in sorted(heights, key=lambda name: heights[name]):
        found[name] = max([heights[name], *(height + 12 for height in found.values())])
    return found


def grid(axis: Axis, begin: float, end: float, unit: str = "") -> list[str]:
    parts = []
    for tick in axis.ticks:
        x = axis.place(tick)
        parts.append(f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='{begin}' y2='{end}'/>")
        parts.append(text(x, end + 16, f"{tick:,g}{unit}", "quiet", "middle"))
    return parts


def legend(names: Mapping[str, str]) -> str:
    """Which colour is whose, as text of a page; the rows of a workload have the same order."""
    each = (f"<span><b style='color:{colour(names, peer)}'>●</b> {escape(name)}</span>" for peer, name in names.items())
    return f"<p class='legend'>{''.join(each)}</p>"


def dot(x: float, y: float, ink: str, *, is_hollow: bool = False) -> str:
    fill = "none" if is_hollow else ink
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{fill}' stroke='{ink}' stroke-width='2'/>"


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' class='{kind}' text-anchor='{anchor}'>{escape(words)}</text>"


def svg(title: str, across: float, height: float, parts: Iterable[str], kind: str = "") -> str:
    label = f"role='img' aria-label='{escape(title, quote=True)}'"
    return f"<svg class='{kind}' viewBox='0 0 {across} {height:.0f}' {label}>{''.join(parts)}</svg>"
