"""What each pass of a first run costs whose records come in several batches, and each of its tables.

Run by `python -m benchmarks.batches --facts 4000000 --batch 1000000`: the sales and customers of `proportion`. Batches
of 200,000 and more have all versions of the customers in the first pass. Tables are computed one after the other, so
that each has its own CPU.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.proportion import Meter, log_of, revenue
from sluice.cli.printing import print_table
from sluice.engine.catalogue import Node, ordered
from sluice.engine.runner import Event, Runner
from sluice.runtime.session import spark_session
from sluice.runtime.settings import Settings
from sluice.storage.delta import Lake

columns = ("pass", "table", "rows", "wall s", "CPU s", "MB read", "MB written", "statements")


@dataclass(frozen=True)
class Measured(Runner):
    """A run that notes what each table took."""

    costs: list[tuple[str, int, list[float]]] = field(default_factory=list)

    def step(self, node: Node, *, rebuild: bool) -> Event:
        meter = Meter(self.spark)
        before = meter.read()
        event = super().step(node, rebuild=rebuild)
        if event.rows.total:
            self.costs.append((node.name, event.rows.total, meter.since(before)))
        return event


def main(
    facts: Annotated[int, typer.Option(help="How many sales there are.")] = 1_000_000,
    batch: Annotated[int, typer.Option(help="How many records of a topic a pass lands at most.")] = 250_000,
) -> None:
    """Prints what each table took in each pass."""
    found = []
    with tempfile.TemporaryDirectory() as folder, spark_session(Settings()) as spark:
        log, lake = log_of(facts, Path(folder)), Lake(str(Path(folder, "lake")))
        run = Measured(spark, lake, log, ordered([revenue]), batch_records_max=batch, parallel=1)
        number = 0
        while any(event.rows.total for event in run.one_pass()):
            number += 1
            total = [sum(each) for each in zip(*[cost for _, _, cost in run.costs], strict=True)]
            found += [[number, name, rows, *cost] for name, rows, cost in run.costs]
            found.append([number, "all", sum(rows for _, rows, _ in run.costs), *total])
            run.costs.clear()
    print_table(columns, found)


if __name__ == "__main__":
    typer.run(main)
