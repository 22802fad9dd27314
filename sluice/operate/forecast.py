"""What the next run will do to each topic and dataset, and which rows are at stake; nothing is run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sluice.engine.blocked import blocks
from sluice.engine.catalogue import Catalogue
from sluice.engine.evaluation import repaired
from sluice.engine.land import waiting
from sluice.engine.refresh import is_on_hold, newest_inputs, waits_for, why
from sluice.log import AnyLog
from sluice.model.datasets import Dataset, Topic
from sluice.operate.status import log_of, not_current
from sluice.storage.delta import Lake

Action = Literal["land", "build", "recompute", "follow", "hold", "wait", "nothing", "leave"]


@dataclass(frozen=True)
class Step:
    """What the next run will do to a topic or a dataset, and why.

    It will `land` records, `build` a table that does not exist, `recompute` all rows of one, or let it `follow` what
    has changed in its inputs or will change in this run. It will `hold` one that may not be replaced or cannot land,
    let it `wait` for an input that does not exist, or do `nothing`. What no declaration makes it will `leave` as it is.

    `rows` are those that the table has now, and `records` those of the log that wait. `blocked` says why an earlier run
    could not compute it; the next one tries again. `fields` are those of its declaration that changed, where the
    table says how it was declared.
    """

    name: str
    action: Action
    because: str = ""
    rows: int | None = None
    records: int = 0
    blocked: str | None = None
    fields: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        """Whether the table may have other rows after the run."""
        return self.action in ("land", "build", "recompute", "follow")


def forecast(lake: Lake, log: AnyLog, catalogue: Catalogue, *, hold_changed: bool = False) -> list[Step]:
    """The steps of the next run, upstream first, and then the tables that nothing declares.

    A dataset that follows its inputs may turn out to be as it should be; then so is what is made from it.
    """
    stopped = blocks(lake.files)
    steps: dict[str, Step] = {}
    for node in catalogue.nodes:
        if isinstance(node, Topic):
            step = step_of_topic(lake, log, node)
        else:
            step = step_of_dataset(lake, node, steps, hold_changed=hold_changed)
        block = stopped.get(node.name)
        steps[node.name] = replace(step, blocked=str(block) if block else None)
    return [*steps.values(), *left_alone(lake, catalogue)]


def step_of_topic(lake: Lake, log: AnyLog, topic: Topic) -> Step:
    """Whether records wait to land. The first run makes a table, even without records."""
    commit = lake.last_commit(topic.name)
    landed = commit.entry.landed if commit else {}
    available, wrong = log_of(log, topic.topic, landed)
    rows = lake.row_count(topic.name) if commit else None
    step = Step(topic.name, "nothing", rows=rows, records=sum(waiting(available, landed).values()))
    if wrong is not None:
        return replace(step, action="hold", because=wrong)
    if commit is None:
        is_there = not topic.optional or log.exists(topic.topic)
        return replace(step, action="build", because="first build") if is_there else step
    return replace(step, action="land", because="new records") if step.records else step


def step_of_dataset(lake: Lake, dataset: Dataset, above: Mapping[str, Step], *, hold_changed: bool) -> Step:
    """What a refresh would find to do, now or once its inputs have changed."""
    known, pinned = lake.last_commit(dataset.name), newest_inputs(lake, dataset)
    step = Step(dataset.name, "nothing", rows=lake.row_count(dataset.name) if known else None)
    if known and is_on_hold(dataset, known, hold_changed=hold_changed):
        return replace(step, action="hold", because=not_current(known.entry, dataset) or "")
    if missing := [name for name in sorted(waits_for(dataset, pinned)) if not above[name].is_change]:
        return replace(step, action="wait", because=f"there is no {', '.join(missing)}")
    versions = {name: commit.as_input for name, commit in pinned.items()}
    cause = why(lake, dataset, known, versions, rebuild=False, backfill=None)
    if cause == "first build":
        return replace(step, action="build", because=cause)
    if known and cause in ("declaration changed", "input rebuilt", "unfinished", "altered", "rebuild"):
        fields = known.entry.changed_fields(dataset.declared) if cause == "declaration changed" else ()
        by = repaired(lake, dataset, known, cause)
        return replace(step, action="recompute", because=by or cause, fields=fields)
    moving = {each.source.name for each in dataset.inputs.values() if above[each.source.name].is_change}
    newer = {name for name, now in versions.items() if known and not known.entry.seen(name, now).is_state(now)}
    if moving or newer:
        return replace(step, action="follow", because=f"changes of {', '.join(sorted(moving | newer))}")
    return step


def left_alone(lake: Lake, catalogue: Catalogue) -> Iterator[Step]:
    """The tables that no declaration makes, such as those of one that was removed."""
    made = {node.name for node in catalogue.topics}
    made |= {output.table for dataset in catalogue.datasets for output in dataset.outputs}
    for name in lake.tables():
        # Sluice's own begin with an underscore.
        if name not in made and not name.partition(".")[2].startswith("_"):
            rows = lake.row_count(name) if lake.last_commit(name) else None
            yield Step(name, "leave", "not declared", rows)
