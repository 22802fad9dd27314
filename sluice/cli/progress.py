"""Progress of a run on stderr: each dataset with its layer, its records, its rate and how far its Spark job is."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from sluice.engine.catalogue import Catalogue
from sluice.engine.runner import Event
from sluice.runtime.session import tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

refresh_seconds = 0.5


class RunProgress:
    """Listens to a run; on a terminal it draws bars, else it prints a line for each dataset that is done."""

    def __init__(self, console: Console, catalogue: Catalogue) -> None:
        self.console = console
        self.names = [node.name for node in catalogue.nodes]
        self.bars = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
            console=console,
            transient=True,
        )
        self.tasks: dict[str, TaskID] = {}
        self.spark: SparkSession | None = None
        self.closed = threading.Event()
        self.poller = threading.Thread(target=self.poll, daemon=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
            self.tasks["spark"] = self.bars.add_task("starting Spark", total=None, said="")
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.bars.stop()

    def watch(self, spark: "SparkSession") -> None:
        """Follows the jobs of a session that has just started."""
        self.spark = spark
        if self.console.is_terminal:
            self.bars.remove_task(self.tasks.pop("spark"))
            self.poller.start()

    def __call__(self, event: Event) -> None:
        if event.kind == "started" and self.console.is_terminal:
            self.tasks[event.name] = self.bars.add_task(event.name, total=None, said="")
        if event.kind == "waiting":
            self.console.print(f"[yellow bold]Waiting:[/] {escape(event.name)}", highlight=False)
        if event.kind == "done":
            task = self.tasks.pop(event.name, None)
            if task is not None:
                self.bars.remove_task(task)
            if event.is_effective:
                self.console.print(line(event), highlight=False)
            elif event.refused and event.cause:
                self.console.print(refusal(event), highlight=False)
            elif event.blocked:
                self.console.print(blockage(event), highlight=False)

    def poll(self) -> None:
        """Moves the bars by the tasks that Spark has finished."""
        while not self.closed.wait(refresh_seconds):
            for name, task in list(self.tasks.items()):
                total, completed = self.spark_tasks(name)
                if total and name in self.tasks:
                    self.bars.update(task, total=total, completed=completed, said=f"{completed}/{total} tasks")

    def spark_tasks(self, name: str) -> tuple[int, int]:
        """How many tasks the running stages of a dataset have, and how many of them are done."""
        return tasks_of(self.spark, name) if self.spark is not None else (0, 0)

    def summary(self, done: Sequence[Event], seconds: float) -> Table | str:
        """What the run did, in one line."""
        landed = sum(event.rows.inserted for event in done if event.name.startswith("bronze."))
        changed = sum(event.rows.total for event in done if not event.name.startswith("bronze."))
        held = [event.name for event in done if event.held]
        said = (
            f"\nHeld as they are, because their declarations changed and are not promoted: {', '.join(held)}. "
            "To see what would change: sluice replay start --because '…'"
            if held
            else ""
        )
        refused = [event.name for event in done if event.refused]
        if refused:
            said += f"\nRefused, so that their readers keep what they had: {', '.join(refused)}. Why: sluice check"
        blocked = [event.name for event in done if event.blocked]
        if blocked:
            said += f"\nBlocked, so that they stay as they are: {', '.join(blocked)}. Why: sluice status"
        waiting = [event.name for event in done if event.waits_for]
        if waiting:
            said += f"\nWaiting for what is blocked: {', '.join(waiting)}."
        if len(done) == len(held) + len(refused) + len(blocked) + len(waiting):
            up_to_date = len(self.names) - len(done)
            return f"Nothing new: {up_to_date} tables are up to date ({seconds:.1f} s).{said}"
        return (
            f"{landed:,} records landed and {changed:,} rows changed in silver and gold in {seconds:.1f} s "
            f"({landed / seconds:,.0f} records/s).{said}"
        )


def refusal(event: Event) -> str:
    """One dataset whose new rows were not let through."""
    return f"{event.name:<28} {event.seconds:6.1f} s  [red bold]refused[/]: {', '.join(event.refused)}"


def blockage(event: Event) -> str:
    """One topic or dataset that could not be brought up to date."""
    return f"{event.name:<28} {event.seconds:6.1f} s  [red bold]blocked[/]: {escape(event.blocked or '')}"


def line(event: Event) -> str:
    """One finished dataset: what it wrote, how fast, and why."""
    rows = event.rows
    parts = [f"{count:,} {what}" for what, count in rows.model_dump().items() if count] or ["no row changed"]
    rate = f"{rows.total / event.seconds:,.0f} rows/s" if rows.total and event.seconds else ""
    return f"{event.name:<28} {event.seconds:6.1f} s  {rate:>16}  {', '.join(parts)}  [dim]({event.cause})[/dim]"
