"""Progress of a run on stderr: each dataset with its layer, its records, its rate and how far its Spark job is."""

import threading
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status

from sluice.api import Event, RunResult, counted
from sluice.cli.printing import up_to_date

refresh_seconds = 0.5
# Of fewer, a rate says how long statements take, and nothing of their number.
rate_count_min = 1_000


class RunProgress:
    """Listens to a project; on a terminal it draws bars, else it prints a line for each dataset that is done.

    `spark_tasks` gives the number of a dataset's Spark tasks, and how many of them are done.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.spark_tasks: Callable[[str], tuple[int, int]] = lambda name: (0, 0)
        self.bars = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
            console=console,
            transient=True,
        )
        self.step: Status | None = None
        self.tasks: dict[str, TaskID] = {}
        self.closed = threading.Event()
        self.poller = threading.Thread(target=self.poll, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self.bars.stop()
        if self.step is not None:
            self.step.stop()

    def __call__(self, event: Event) -> None:
        match event.kind:
            case "waiting":
                self.console.print(f"[yellow bold]Waiting:[/] {escape(event.name)}", highlight=False)
            case "done":
                self.done(event)
            case _ if self.console.is_terminal:
                self.draw(event)

    def draw(self, event: Event) -> None:
        """Shows what has begun."""
        match event.kind:
            case "starting":
                self.bars.start()
                self.tasks["spark"] = self.bars.add_task("starting Spark", total=None, said="")
            case "ready":
                self.bars.remove_task(self.tasks.pop("spark"))
                if not self.poller.is_alive():
                    self.poller.start()
            case "started":
                self.tasks[event.name] = self.bars.add_task(event.name, total=None, said="")
            case "step":
                self.step = self.step or self.console.status("")
                self.step.update(event.name)
                self.step.start()

    def done(self, event: Event) -> None:
        """Says what was done, if anything was."""
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


def summary(done: RunResult) -> str:
    """What the run did, in one line."""
    said = (
        f"\nOn hold, until a changed declaration is promoted or the old one is restored: {', '.join(done.held)}. "
        "To see what would change: sluice replay start --because '…'"
        if done.held
        else ""
    )
    if done.refused:
        said += f"\nRefused, so that their readers keep what they had: {', '.join(done.refused)}. Why: sluice check"
    if done.blocked:
        said += f"\nBlocked, so that they stay as they are: {', '.join(done.blocked)}. Why: sluice status"
    if done.waiting:
        said += f"\nWaiting for what is blocked: {', '.join(done.waiting)}."
    if len(done.events) == len(done.held) + len(done.refused) + len(done.blocked) + len(done.waiting):
        # What is blocked or on hold may have news.
        nothing = "" if done.events else "Nothing new: "
        return f"{nothing}{up_to_date(done.up_to_date)} ({done.seconds:.1f} s).{said}"
    records, rows = counted(done.records_landed, "record"), counted(done.rows_changed, "row")
    rate = rate_of(done.records_landed, done.seconds, "records")
    took = f"{done.seconds:.1f} s ({rate})" if rate else f"{done.seconds:.1f} s"
    return f"{records} landed and {rows} changed in silver and gold in {took}.{said}"


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
    parts += [f"{event.rejected:,} not accepted"] if event.rejected else []
    rate = rate_of(rows.total, event.seconds, "rows")
    parts += [rate] if rate else []
    return f"{event.name:<28} {event.seconds:6.1f} s  {', '.join(parts)}  [dim]({event.cause})[/dim]"


def rate_of(count: int, seconds: float, what: str) -> str:
    """How many were processed in a second; nothing of a few, whose time is that of statements."""
    return f"{count / seconds:,.0f} {what}/s" if count >= rate_count_min and seconds else ""
