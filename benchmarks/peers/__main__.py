"""Measures each peer on each base, proves its tables equal to Sluice's, and writes what was found as JSON.

Run by `python -m benchmarks.peers --facts 80000 --facts 800000 --out figures.json`. A peer is a process of its own,
with a copy of the same log, and they run one after the other. The first refresh loads everything; then each change is
made three times, and the third counts. CPU-seconds and bytes are those of the process and all below it, such as a JVM.
Bytes are those asked of the system (`rchar`), from memory or disk; a file that is mapped into memory is not in them.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console

from benchmarks.peers.measure import Run, measured, rounds
from benchmarks.peers.shared import rows_wrong
from benchmarks.proportion import log_of

ours = "sluice_itself"
peers = {
    ours: "Sluice",
    "duckdb_from_nothing": "DuckDB from nothing",
    "duckdb_incremental": "DuckDB incremental",
    "polars_from_nothing": "Polars from nothing",
    "pyspark_merge": "PySpark MERGE",
}
packages = ("deltalake", "duckdb", "polars", "pyspark")


def compared(facts: int, chosen: list[str], folder: Path) -> Iterator[tuple[str, list[Run]]]:
    """The runs of each peer on a base, Sluice's first; those that count have the number of their wrong rows."""
    base = log_of(facts, folder / "base").root
    own: list[Run] = []
    for peer in chosen:
        shutil.copytree(base, folder / peer / "log")
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            runs = process.submit(measured, peer, folder / peer, facts).result()
        own = own or runs
        for mine, run in zip(own, runs, strict=True):
            if run.counts and peer != ours:
                run.rows_wrong = rows_wrong(folder / ours / "lake", mine.versions, folder / peer / "lake", run.versions)
        yield peer, runs


def main(
    facts: Annotated[list[int] | None, typer.Option(help="The facts of a base; give it twice or more.")] = None,
    peer: Annotated[list[str] | None, typer.Option(help=f"Only these, beside Sluice: {', '.join(peers)}.")] = None,
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("build/peers.json"),
) -> None:
    """Compares, and writes the figures after each peer."""
    console = Console(stderr=True)
    chosen = [each for each in peers if each == ours or not peer or each in peer]
    bases: list[dict[str, object]] = []
    figures = {
        "measured_at": datetime.now(UTC),
        "machine": {
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[2],
            "python": platform.python_version(),
            "packages": {name: version(name) for name in packages},
        },
        "names": peers,
        "rounds": rounds,
        "bases": bases,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    for count in facts or [80_000, 800_000]:
        of_base: dict[str, list[Run]] = {}
        bases.append({"facts": count, "runs": of_base})
        with tempfile.TemporaryDirectory() as folder:
            for name, runs in compared(count, chosen, Path(folder)):
                of_base[name] = runs
                out.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
                wrong = sum(sum(run.rows_wrong.values()) for run in runs)
                console.print(f"{count:,} facts, {peers[name]}: {wrong:,} rows wrong", highlight=False)
    console.print(f"Wrote {out}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
