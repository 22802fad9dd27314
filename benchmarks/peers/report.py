"""One page from the figures of `python -m benchmarks.peers`: where Sluice loses, in words, tables and plots.

Run by `python -m benchmarks.peers.report build/peers.json build/peers.html`. All that it says is computed from the
figures. The page needs no script and no network.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from benchmarks.peers.plots import dots, legend, lines, number


@dataclass(frozen=True)
class Metric:
    """Something that is measured, as the figures name it and as the page does."""

    key: str
    title: str
    unit: str


metrics = (
    Metric("cpu_seconds", "CPU", "CPU s"),
    Metric("wall_seconds", "Time on the clock", "s"),
    Metric("megabytes_read", "Read", "MB"),
)
# Where two figures differ by less, nobody wins.
noise = 1.1


@dataclass(frozen=True)
class Base:
    """What counts of the runs on one base: by workload and peer; and all rounds, by peer."""

    facts: int
    counted: Mapping[str, Mapping[str, Mapping[str, Any]]]
    runs: Mapping[str, Sequence[Mapping[str, Any]]]

    def values(self, metric: Metric) -> dict[str, dict[str, float]]:
        """The figures by workload and peer, where there are some."""
        return {
            workload: {peer: run[metric.key] for peer, run in of_peers.items() if run[metric.key] is not None}
            for workload, of_peers in self.counted.items()
        }

    def is_wrong(self, workload: str, peer: str) -> int:
        """How many of its rows are wrong."""
        return sum(self.counted[workload][peer]["rows_wrong"].values())

    def right(self, workload: str, metric: Metric) -> dict[str, float]:
        """The figures of the peers whose rows are right."""
        found = self.values(metric)[workload]
        return {peer: value for peer, value in found.items() if not self.is_wrong(workload, peer)}


def bases_of(figures: Mapping[str, Any]) -> list[Base]:
    found = []
    for each in figures["bases"]:
        counted: dict[str, dict[str, Any]] = {}
        for peer, runs in each["runs"].items():
            # The last round of each workload comes last.
            for run in runs:
                counted.setdefault(run["workload"], {})[peer] = run
        found.append(Base(each["facts"], counted, each["runs"]))
    return sorted(found, key=lambda base: base.facts)


def page(figures: Mapping[str, Any]) -> str:
    names, bases = figures["names"], bases_of(figures)
    parts = [
        heading(figures),
        "<h2>Where Sluice loses, and where it wins</h2>",
        *(verdict(base, metric, names) for base in bases for metric in metrics),
        *wrong_rows(bases, names),
        *(part for base in bases for part in of_base(base, names)),
        *growth(bases, names),
        about(figures["rounds"]),
    ]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>{head}</head><body>{''.join(parts)}</body></html>"
    )


def heading(figures: Mapping[str, Any]) -> str:
    machine = figures["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    measured_at, load = figures["measured_at"][:16].replace("T", " "), machine["load_before"]
    is_busy = load > machine["cores"] / 2
    advice = "read CPU and bytes rather than the clock" if is_busy else "the clock can be read, too"
    return (
        "<h1>Sluice beside its peers</h1>"
        f"<p class='quiet'>Measured {escape(measured_at)} UTC on {machine['cores']} cores. "
        f"In the quarter of an hour before, {number(load)} other processes wanted to run there: {advice}. "
        f"Python {escape(machine['python'])}, {escape(packages)}.</p>"
    )


def verdict(base: Base, metric: Metric, names: Mapping[str, str]) -> str:
    """What the figures say of Sluice and the best of the others, in a sentence for each workload."""
    ours = next(iter(names))
    losses, said = 0, []
    for workload in base.counted:
        found = base.right(workload, metric)
        others = {names[peer]: value for peer, value in found.items() if peer != ours}
        if ours not in found or not others:
            said.append(f"{escape(workload)}: no peer to compare with gave the right rows.")
            continue
        losses += found[ours] > min(others.values()) * noise
        said.append(f"{escape(workload)}: {sentence(metric, found[ours], others)}")
    title = f"{metric.title}, {base.facts:,} facts: Sluice loses to the best peer in {losses} of {len(said)} workloads"
    shown = " open" if metric == metrics[0] else ""
    return (
        f"<details{shown}><summary>{title}</summary><ul>{''.join(f'<li>{each}</li>' for each in said)}</ul></details>"
    )


def sentence(metric: Metric, ours: float, others: Mapping[str, float]) -> str:
    """How Sluice compares with the best of the others, and which ones it beats."""
    best = min(others, key=lambda peer: others[peer])
    ratio = ours / others[best] if others[best] else float("inf")
    figures = f"{number(ours)} {metric.unit}, and {escape(best)} {number(others[best])}"
    if ratio < 1 / noise:
        return f"<b class='good'>Sluice wins by {number(1 / ratio)} times</b>: it takes {figures}."
    beaten = {peer: value / ours for peer, value in others.items() if value > ours * noise}
    less = ", ".join(f"{escape(peer)} by {number(by)} times" for peer, by in beaten.items())
    also = f" It beats {less}." if beaten else ""
    if ratio <= noise:
        return f"Sluice takes {figures}: about the same.{also}"
    return f"<b class='bad'>Sluice loses by {number(ratio)} times</b>: it takes {figures}.{also}"


def wrong_rows(bases: Sequence[Base], names: Mapping[str, str]) -> Iterator[str]:
    """Whose rows are wrong, after what: such figures count for nothing."""
    found = [
        f"{escape(names[peer])}, {base.facts:,} facts, {escape(workload)}: {base.is_wrong(workload, peer):,} rows wrong"
        for base in bases
        for workload, of in base.counted.items()
        for peer in of
        if base.is_wrong(workload, peer)
    ]
    if found:
        yield f"<h3>Wrong rows, whose figures do not count</h3><ul>{''.join(f'<li>{each}</li>' for each in found)}</ul>"
    else:
        yield "<p>After each of these the rows of every peer were equal to Sluice's.</p>"


def growth(bases: Sequence[Base], names: Mapping[str, str]) -> Iterator[str]:
    """How much more a workload costs on the largest base than on the smallest."""
    if len(bases) < 2:
        return
    small, large, metric = bases[0], bases[-1], metrics[0]
    yield f"<h2>What a base {number(large.facts / small.facts)} times as large costs more</h2>"
    yield f"<p>{metric.title} of {large.facts:,} facts ÷ that of {small.facts:,}.</p>"
    values, before = large.values(metric), small.values(metric)
    peers = [peer for peer in names if peer in small.runs and peer in large.runs]
    rows = [
        [escape(workload), *[f"{number(of[peer] / before[workload][peer])} times" for peer in peers]]
        for workload, of in values.items()
    ]
    yield table(["", *[escape(names[peer]) for peer in peers]], rows)
    yield f"<p>{metric.title} by facts of the base, both axes logarithmic, {metric.unit}.</p>"
    yield legend(names)
    for workload in values:
        series: dict[str, list[tuple[int, float]]] = {}
        for base in bases:
            for peer, value in base.values(metric).get(workload, {}).items():
                series.setdefault(peer, []).append((base.facts, value))
        yield lines(workload, series, names)


def of_base(base: Base, names: Mapping[str, str]) -> Iterator[str]:
    """The plots and the tables of a base."""
    peers = [peer for peer in names if peer in base.runs]
    yield f"<h2>{base.facts:,} facts</h2>{legend(names)}"
    for metric in metrics:
        title = f"{metric.title} of each workload, {metric.unit}, logarithmic axis"
        wrong = {(work, peer) for work, of in base.counted.items() for peer in of if base.is_wrong(work, peer)}
        yield dots(title, base.values(metric), names, wrong, metric.unit)
    columns = [escape(names[peer]) for peer in peers]
    rows = [[escape(workload), *[cell(base, workload, peer) for peer in peers]] for workload in base.counted]
    yield "<h3>CPU s / s on the clock / MB read</h3>" + table(["", *columns], rows)
    rounds = [
        [escape(workload), *[of_rounds(base.runs[peer], workload) for peer in peers]] for workload in base.counted
    ]
    yield f"<details><summary>CPU s of every round</summary>{table(['', *columns], rounds)}</details>"


def of_rounds(runs: Sequence[Mapping[str, Any]], workload: str) -> str:
    return " · ".join(number(run["cpu_seconds"]) for run in runs if run["workload"] == workload)


def cell(base: Base, workload: str, peer: str) -> str:
    run = base.counted[workload].get(peer)
    if run is None:
        return "not measured"
    costs = " / ".join("–" if run[metric.key] is None else number(run[metric.key]) for metric in metrics)
    if wrong := base.is_wrong(workload, peer):
        return f"{costs} <b class='bad'>{wrong:,} rows wrong</b>"
    return costs


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in columns)
    body = "".join(f"<tr>{''.join(f'<td>{each}</td>' for each in row)}</tr>" for row in rows)
    return f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"


def about(rounds: int) -> str:
    return f"""
        <h2>What was measured, and how</h2>
        <p>Each peer is a process of its own and brings four tables up to what the same log has: sales, each once;
        the versions of customers; each sale with the version that was valid; revenue by segment and day. The full load
        is the first thing that its process does, without the start of Python and of the JVM. Then each change is made
        {rounds} times in the same process, and the last counts. CPU and bytes are those of the process and all below
        it. Bytes are those asked of the system, from memory or disk; where files are mapped into memory, there is no
        figure. A figure counts only beside rows that are equal to Sluice's, each row and each column that the peer
        has.</p>
        <p>The figures do not say what each keeps. Sluice's include bronze, the fate of each record, and the ledger of
        causes. Those from nothing keep four tables and read the whole log each time. The incremental ones keep
        four tables and the changes of customers, and commit each table by itself; which records have been read, a
        file says. PySpark runs with the settings of Sluice's own session.</p>
    """


head = """<title>Sluice beside its peers</title><style>
:root { color-scheme: light dark; --text: #1b2733; --quiet: #5b6b7a; --line: #dde3e9; --ground: #fff;
  --good: #1a7f4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e4eaf0; --quiet: #9aa8b6; --line: #2c3742; --ground: #12181e;
  --good: #58c48c; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground); max-width: 64rem;
  margin: 0 auto; padding: 1rem 1.25rem 4rem; }
h1 { font-size: 1.45rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
ul { margin: .3rem 0; padding-left: 1.3rem; }
.quiet { color: var(--quiet); } .good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; border-bottom: 1px solid var(--line); padding: .3rem .9rem .3rem 0; vertical-align: top; }
svg { width: 100%; max-width: 60rem; height: auto; margin: .8rem 0; }
svg.half { width: 48%; min-width: 20rem; }
summary { font-weight: 650; margin: .6rem 0 .2rem; cursor: pointer; }
.legend span { margin-right: 1.2rem; white-space: nowrap; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; } svg .quiet { fill: var(--quiet); }
svg .title { font-weight: 650; font-size: 13px; } svg .grid { stroke: var(--line); }
</style>"""


def main(
    figures: Annotated[Path, typer.Argument(help="What `python -m benchmarks.peers` wrote.")] = Path(
        "build/peers.json"
    ),
    out: Annotated[Path, typer.Argument(help="The page.")] = Path("build/peers.html"),
) -> None:
    out.write_text(page(orjson.loads(figures.read_bytes())))
    typer.echo(f"Wrote {out}")


if __name__ == "__main__":
    typer.run(main)
