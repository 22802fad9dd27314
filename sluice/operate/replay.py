"""Replay: recompute tables beside the live ones, show what would change, and promote it in one step.

A changed declaration, a doubtful part of the past or a damaged table is recomputed in a shadow from the same inputs
that the live table was computed from, so that every difference is due to the declaration or the damage. Promoting
brings the shadow up to date and writes the difference, one commit a table; rolling back undoes that.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count, pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sluice.engine.backfill import BackfillRange
from sluice.engine.blocked import reason_of
from sluice.engine.catalogue import Catalogue
from sluice.engine.commit import commit
from sluice.engine.culprit import Attempt, naming_culprits
from sluice.engine.evaluation import union
from sluice.engine.gate import Verdict
from sluice.engine.refresh import judged_rows, refresh, require_whole
from sluice.errors import SluiceError, UsageError
from sluice.model.datasets import Dataset, Output
from sluice.model.expectations import Expectation
from sluice.model.ledger import Commit, Entry, InputVersion, RowCounts, changed_here, no_rows
from sluice.model.scope import Scope, collect, everything
from sluice.operate.compare import Compared, compare
from sluice.operate.shadow import Shadow, clone_version, copy, cut, pinned, repairs_of, shadow_of
from sluice.shapes.difference import has_doubled
from sluice.storage.delta import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

folder_name = "_replays"
replaced_by = ("declaration changed", "rebuild", "promoted")


class Replay(BaseModel):
    """A replay: what is recomputed and why, how far it is, and what it would change.

    A build that raised an error is `failed`; one that was killed stays `building`.

    `datasets` are those recomputed, `tables` these and all that is made from them. `versions` are those of the live
    tables that it began from, and `table_ids` tell these tables from others of their names.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    created_at: datetime
    because: str
    datasets: tuple[str, ...]
    tables: tuple[str, ...]
    part: BackfillRange | None = None
    state: Literal["building", "failed", "built", "promoted"] = "building"
    failed_because: str = ""
    fingerprints: dict[str, str]
    changed: tuple[str, ...]
    versions: dict[str, int] = {}
    table_ids: dict[str, str] = {}
    compared: tuple[Compared, ...] = ()

    @property
    def rows_that_differ(self) -> int:
        return sum(each.inserted + each.updated + each.deleted for each in self.compared)


def folder(name: str) -> str:
    return f"{folder_name}/{name}"


def file_name(name: str) -> str:
    """The file that says what is known of a replay."""
    return f"{folder(name)}/replay.json"


def save(lake: Lake, replay: Replay) -> Replay:
    """Keeps what is known of a replay."""
    lake.files.write(file_name(replay.name), replay.model_dump_json(indent=2))
    return replay


def replays(lake: Lake) -> list[Replay]:
    """All replays that are kept and can be read, the oldest first."""
    found = (read(lake, name) for name in lake.files.folders(folder_name))
    return sorted((each for each in found if isinstance(each, Replay)), key=lambda each: each.created_at)


def unreadable(lake: Lake) -> list[str]:
    """The names of the replays whose file cannot be read."""
    return [name for name in lake.files.folders(folder_name) if isinstance(read(lake, name), Exception)]


def read(lake: Lake, name: str) -> Replay | ValidationError | UnicodeDecodeError | None:
    """What is kept of a replay, or why it cannot be read; None where nothing is."""
    try:
        return Replay.model_validate_json(lake.files.read(file_name(name)))
    except FileNotFoundError:
        return None
    except (ValidationError, UnicodeDecodeError) as error:
        return error


def find(lake: Lake, name: str) -> Replay:
    """The replay of a name; a UsageError lists those that there are."""
    # By what there is, so that no name can lead out of the folder.
    found = {each.name: each for each in replays(lake)}
    if name not in found:
        known = ", ".join(found) or "none; begin one with: sluice replay start"
        raise UsageError(f"There is no replay {name}; there are {known}.")
    return found[name]


def drop(lake: Lake, name: str) -> None:
    """Forgets a replay and removes its tables; what was promoted stays."""
    if name not in lake.files.folders(folder_name):
        # One without a file that says what it is may be left of a start, or of a removal, that broke off.
        find(lake, name)
    lake.files.delete_folder(folder(name))


def changed_datasets(lake: Lake, catalogue: Catalogue) -> list[Dataset]:
    """The datasets whose table was made by another declaration than theirs."""
    commits = {dataset.name: lake.last_commit(dataset.name) for dataset in catalogue.datasets}
    return [
        dataset
        for dataset in catalogue.datasets
        if (known := commits[dataset.name]) and known.entry.fingerprint != dataset.fingerprint
    ]


def shadow(lake: Lake, replay: Replay, catalogue: Catalogue) -> tuple[Shadow, list[Dataset]]:
    """The shadow of a replay, and the datasets that it copies, upstream first."""
    datasets = [each for each in catalogue.datasets if each.name in replay.tables]
    return shadow_of(lake, f"{lake.root}/{folder(replay.name)}/lake", datasets), datasets


def plan(lake: Lake, catalogue: Catalogue, names: Sequence[str], part: BackfillRange | None, because: str) -> Replay:
    """A replay of the named datasets, by default of those whose declaration changed, and of all made from them."""
    changed = [each.name for each in changed_datasets(lake, catalogue)]
    wanted = tuple(names or changed or ([each.name for each in catalogue.datasets] if part else ()))
    if not wanted:
        raise UsageError("No declaration changed since the tables were made. Name the datasets to recompute.")
    affected = catalogue.downstream_of(wanted)
    missing = [name for name in wanted if lake.last_commit(name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)}: there is no table to compare with yet. Run first: sluice run")
    if part is not None:
        require_landed(lake, part, catalogue.upstream_of(wanted))
    now = datetime.now(UTC)
    return Replay(
        name=unused_name(lake, f"{now:%Y%m%d-%H%M%S}"),
        created_at=now,
        because=because,
        datasets=wanted,
        tables=tuple(each.name for each in affected),
        part=part,
        fingerprints={each.name: each.fingerprint for each in affected},
        changed=tuple(each.name for each in affected if each.name in changed),
    )


def unused_name(lake: Lake, name: str) -> str:
    """The name, with a number where another replay began in the same second."""
    taken = lake.files.folders(folder_name)
    return next(each for each in numbered(name) if each not in taken)


def begun(lake: Lake, planned: Replay) -> Replay:
    """Keeps a replay, which gets another number where one that was planned at the same time has its name by now."""
    named = (planned.model_copy(update={"name": name}) for name in numbered(planned.name))
    return next(each for each in named if lake.files.create(file_name(each.name), each.model_dump_json(indent=2)))


def numbered(name: str) -> Iterator[str]:
    """The name, and it with a number behind."""
    return chain([name], (f"{name}-{number}" for number in count(2)))


def require_landed(lake: Lake, part: BackfillRange, replayed: Catalogue) -> None:
    """A UsageError where nothing to be replayed is made from the topic of some records, or where none has landed."""
    tables = {topic: table for each in replayed.datasets for topic, table in each.landed_in.items()}
    for each in part.records:
        if each.topic not in tables:
            known = ", ".join(sorted(tables)) or "none"
            raise UsageError(f"{each.topic}: no dataset to be replayed is made from this topic; they read {known}.")
        commit = lake.last_commit(tables[each.topic])
        landed = commit.entry.landed if commit else {}
        if each.partition not in landed or each.first >= landed[each.partition].next_offset:
            ends = {number: known.next_offset for number, known in sorted(landed.items()) if known.next_offset}
            last = ", ".join(f"{each.topic}/{number}/{next_offset - 1}" for number, next_offset in ends.items())
            raise UsageError(
                f"Nothing has landed at {each.topic}/{each.partition}/{each.first}-{each.last}; the last records are "
                f"{last or 'none'}."
            )


def build(spark: "SparkSession", lake: Lake, catalogue: Catalogue, replay: Replay) -> Iterator[str]:
    """Computes the replay in its shadow and compares it, naming each dataset before its turn; ends as 'built'."""
    try:
        yield from built(spark, lake, catalogue, replay)
    except Exception as error:
        # A full disk is no reason to hide what filled it.
        with suppress(OSError):
            save(lake, replay.model_copy(update={"state": "failed", "failed_because": reason_of(error)}))
        raise


def built(spark: "SparkSession", lake: Lake, catalogue: Catalogue, replay: Replay) -> Iterator[str]:
    """The same, without keeping why it fails."""
    beside, datasets = shadow(lake, replay, catalogue)
    if replay.part is not None:
        for dataset in datasets:
            require_whole(lake, dataset)
    cuts = cut(lake, datasets)
    versions = {table: version for each in cuts.values() for table, version in each.versions.items()}
    table_ids = {name: each.commit.table_id for name, each in cuts.items()}
    replay = save(lake, replay.model_copy(update={"versions": versions, "table_ids": table_ids}))
    yield "copying"
    copy(spark, beside, datasets, cuts)
    compared = []
    for dataset in datasets:
        yield dataset.name
        here = cuts.get(dataset.name)
        is_named = dataset.name in replay.datasets
        attempt = Attempt(
            spark,
            beside,
            dataset,
            rebuild=is_named and replay.part is None and here is not None,
            backfill=replay.part if is_named else None,
            pinned=pinned(beside, dataset, here.commit if here else None),
        )
        with naming_culprits(attempt):
            refresh(
                spark,
                beside,
                dataset,
                rebuild=attempt.rebuild,
                backfill=attempt.backfill,
                # Others whose declaration changed too wait for their own replay.
                hold_changed=not is_named,
                pinned=attempt.pinned,
            )
        compared.append(differences(spark, beside, dataset, replay))
    save(lake, replay.model_copy(update={"state": "built", "compared": tuple(compared)}))


def differences(spark: "SparkSession", beside: Shadow, dataset: Dataset, replay: Replay) -> Compared:
    """How the shadow's table differs from what it was cloned from."""
    output, after = dataset.outputs[-1], beside.read(spark, dataset.name)
    is_copy = dataset.name in replay.versions
    before = beside.read(spark, dataset.name, clone_version) if is_copy else after.limit(0)
    scope = keys_of([keys_changed(spark, beside, output, clone_version if is_copy else None)])
    if scope is None:
        return Compared(dataset=dataset.name)
    return compare(dataset.name, output.grain, rows_of_keys(before, output, scope), rows_of_keys(after, output, scope))


def promote(spark: "SparkSession", lake: Lake, catalogue: Catalogue, name: str) -> dict[str, RowCounts]:
    """Brings the shadow up to date and makes the live tables equal to it; returns the rows that changed in each.

    The caller must own the lake. Repeated, also after a crash, it does what is left.
    """
    replay = find(lake, name)
    beside, datasets = shadow(lake, replay, catalogue)
    require_promotable(replay, datasets)
    require_unrepaired(lake, replay, datasets)
    for dataset in datasets:
        with naming_culprits(Attempt(spark, beside, dataset)):
            refresh(spark, beside, dataset, hold_changed=dataset.name not in replay.datasets)
    verdicts = {
        each.name: verdict_on(spark, lake, beside, each, replay, gate=catalogue.gate_of(each)) for each in datasets
    }
    require_accepted(f"The replay {replay.name} is not promoted", verdicts)
    changed = {name: promoted(lake, beside, verdict) for name, verdict in verdicts.items()}
    save(lake, replay.model_copy(update={"state": "promoted"}))
    return changed


def require_accepted(what: str, verdicts: Mapping[str, Verdict | None]) -> None:
    """A SluiceError when one of the tables would break what is critical: a replay cannot bypass the gate."""
    for name, verdict in verdicts.items():
        if verdict is not None and verdict.broken:
            raise SluiceError(f"{what}: {name} would break {', '.join(verdict.broken)}. Nothing was changed.")


def require_promotable(replay: Replay, datasets: Sequence[Dataset]) -> None:
    """A SluiceError when the shadow is not what the declarations say now, or not all of it."""
    again = f"Start again: sluice replay start {' '.join(replay.datasets)}"
    if replay.state == "failed":
        raise SluiceError(f"The replay {replay.name} failed: {replay.failed_because} {again}")
    if replay.state == "building":
        raise SluiceError(f"The replay {replay.name} was never built to its end. {again}")
    if replay.fingerprints != {each.name: each.fingerprint for each in datasets}:
        raise SluiceError(f"The declarations changed since the replay {replay.name} was built. {again}")
    mixed = [name for name in replay.changed if name in replay.datasets]
    if replay.part is not None and mixed:
        raise SluiceError(
            f"The replay {replay.name} shows what the changed {', '.join(mixed)} would say of {replay.part}. One table "
            "cannot follow two declarations, so it can only be promoted as a whole: "
            f"sluice replay start {' '.join(mixed)}"
        )


def require_unrepaired(lake: Lake, replay: Replay, datasets: Sequence[Dataset]) -> None:
    """A SluiceError when a table, of which the replay computed a part, was repaired since, or is to be repaired.

    The shadow follows the inputs, and knows of no repair.
    """
    for dataset in datasets:
        if replay.part is None and dataset.name in replay.datasets:
            continue
        require_whole(lake, dataset)
        # By versions, as a clock may have been wrong.
        since = replay.versions.get(dataset.name, -1)
        repaired = repairs_of(lake, dataset.name, since, dataset.fingerprint, replay.table_ids.get(dataset.name))
        if any(each.entry.replay != replay.name for each in repaired):
            raise SluiceError(
                f"{dataset.name} was repaired since the replay {replay.name} copied it, which promoting would undo. "
                f"Start again: sluice replay start {' '.join(replay.datasets)}"
            )


def verdict_on(
    spark: "SparkSession", lake: Lake, beside: Shadow, dataset: Dataset, replay: Replay, *, gate: Sequence[Expectation]
) -> Verdict | None:
    """The gate's verdict on the live table if it equalled its shadow; None if the shadow is of another declaration."""
    computed = beside.last_commit(dataset.name)
    if computed is None or computed.entry.fingerprint != dataset.fingerprint:
        return None
    entry = computed.entry.model_copy(
        update={
            "inputs": live_inputs(lake, beside, computed.entry.inputs),
            "cause": "promoted",
            "replay": replay.name,
            "because": replay.because,
            **changed_here,
            "epoch_from": 0,
            "read_at": None,
        }
    )
    live, rows = lake.last_commit(dataset.name), {}
    for output in dataset.outputs:
        since = replay.versions.get(output.table)
        in_shadow = keys_changed(spark, beside, output, None if since is None else clone_version)
        scope = keys_of([in_shadow, keys_changed(spark, lake, output, since)])
        if scope is not None:
            is_other = live is not None and live.entry.fingerprint != dataset.fingerprint
            own = lake.read(spark, output.table) if is_other else None
            rows[output.table] = taking_place(output, scope, beside.read(spark, output.table), own)
    return judged_rows(spark, lake, dataset, entry, rows, gate=gate)


def promoted(lake: Lake, beside: Shadow, verdict: Verdict | None) -> RowCounts:
    """Commits what was judged, with a ledger entry as if it had been computed from the live inputs."""
    if verdict is None:
        return no_rows
    # Those that were promoted before it have moved.
    return commit(lake, verdict.over(live_inputs(lake, beside, verdict.plans[-1].entry.inputs)))


def live_inputs(lake: Lake, beside: Shadow, inputs: Mapping[str, InputVersion]) -> dict[str, InputVersion]:
    """The inputs of a shadow's table, with the newest versions of the live tables in place of copies."""
    live = {source: lake.last_commit(source) for source in inputs if source in beside.copied}
    return {**inputs, **{source: found.as_input for source, found in live.items() if found is not None}}


def keys_changed(spark: "SparkSession", lake: Lake, output: Output, since: int | None) -> "list[DataFrame] | None":
    """The keys (grain) of the output's rows that changed after a version; None when the change feed cannot be read."""
    table = output.table
    commit = lake.last_commit(table)
    if since is None or commit is None or commit.entry.epoch_from > since or lake.oldest_version(table) > since + 1:
        return None
    newest = lake.newest_version(table)
    if newest < since:
        return None
    if newest == since:
        return []
    changes = lake.changes(spark, table, since, newest)
    if not {*output.grain} <= {*changes.columns}:
        return None
    return [changes.where(output.slice_condition()).select(*output.grain)]


def keys_of(found: "Sequence[list[DataFrame] | None]") -> Scope | None:
    """The scope of all keys; None when there are none, and everything when some are unknown."""
    if any(each is None for each in found):
        return everything
    keys = [keys for each in found for keys in each or ()]
    return collect(union(keys)) if keys else None


def taking_place(
    output: Output, scope: Scope, after: "DataFrame", own: "DataFrame | None"
) -> "tuple[DataFrame, Scope]":
    """The rows that take the place of those of the scope, and the scope.

    It is everything where the table is its `own` of another declaration, and either has several rows of a key in it.
    """
    states = () if own is None or scope.is_everything else (own, after)
    if any(has_doubled(rows_of_keys(each, output, scope), output.grain) for each in states):
        scope = everything
    return rows_of_keys(after, output, scope), scope


def rows_of_keys(df: "DataFrame", output: Output, scope: Scope) -> "DataFrame":
    """The output's rows that have the keys."""
    return scope.filter(df.where(output.slice_condition()), [(name, name) for name in output.grain])


def tables_of(lake: Lake, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names, or the tables that one replay of that name was the last to replace."""
    found = next((each for each in replays(lake) if names == (each.name,)), None)
    return names if found is None else promoted_by(lake, found)


def rollback(
    spark: "SparkSession", lake: Lake, catalogue: Catalogue, datasets: Sequence[Dataset], because: str
) -> dict[str, RowCounts]:
    """Gives datasets the rows back that they had before they were last promoted or rebuilt: all of them, or none.

    A rollback that was killed goes on when it is repeated: what it has rolled back stays as it is. Their ledger entries
    are the former ones: with the former declaration, the next run catches up from there. With the declaration that was
    rolled back they are on hold.
    """
    replaced = {dataset.name: last_replaced(lake, dataset.name) for dataset in datasets}
    found = [(dataset, *commits) for dataset in datasets if (commits := replaced[dataset.name]) is not None]
    if not found:
        names = ", ".join(replaced)
        raise SluiceError(f"{names}: already rolled back, and neither promoted nor rebuilt since.")
    verdicts = {
        dataset.name: verdict_on_former(
            spark, lake, dataset, before, restored(before, undone, because), gate=catalogue.gate_of(dataset)
        )
        for dataset, before, undone in found
    }
    require_accepted("Nothing is rolled back", verdicts)
    return dict.fromkeys(replaced, no_rows) | {name: commit(lake, verdict) for name, verdict in verdicts.items()}


def restored(before: Commit, undone: Commit, because: str) -> Entry:
    """The ledger entry of a commit once more, which remembers the declaration that was undone."""
    is_other = undone.entry.fingerprint != before.entry.fingerprint
    return before.entry.model_copy(
        update={
            "cause": "rolled back",
            "because": because,
            "replay": undone.entry.replay,
            "rejected": undone.entry.fingerprint if is_other else None,
            **changed_here,
        }
    )


def verdict_on_former(
    spark: "SparkSession", lake: Lake, dataset: Dataset, before: Commit, entry: Entry, *, gate: Sequence[Expectation]
) -> Verdict:
    """The gate's verdict on a dataset with the rows that it had at a commit."""
    rows = {}
    for output in dataset.outputs:
        # A table shared by several datasets has separate versions.
        is_own = output.table == dataset.name
        version = before.version if is_own else lake.version_beside(output.table, before)
        if version is None:
            raise SluiceError(
                f"{dataset.name} cannot be rolled back: an erasure removed what {output.table} had at that time. "
                "Restore its former declaration, and promote a replay of it."
            )
        scope = keys_of([keys_changed(spark, lake, output, version)])
        if scope is not None:
            own = None if entry.rejected is None else lake.read(spark, output.table)
            rows[output.table] = taking_place(output, scope, lake.read(spark, output.table, version), own)
    # What another program had done to those rows comes back with them.
    was_altered = lake.altered_by(dataset.name, before.model_copy(update={"newest_version": before.version}))
    entry = entry.model_copy(update={"read_at": before.accounts_until if was_altered else None})
    return judged_rows(spark, lake, dataset, entry, rows, gate=gate)


def promoted_by(lake: Lake, replay: Replay) -> tuple[str, ...]:
    """The tables that a replay was the last to replace."""
    commits = {table: lake.commits(table) for table in replay.tables}
    newest = {
        table: next((each for each in reversed(found) if each.entry.cause in replaced_by), None)
        for table, found in commits.items()
    }
    return tuple(table for table, commit in newest.items() if commit and commit.entry.replay == replay.name)


def last_replaced(lake: Lake, table: str) -> tuple[Commit, Commit] | None:
    """The commit before the one that last replaced a table by another declaration or by a replay, and that one.

    None where it was rolled back since.
    """
    commits = lake.commits(table)
    for before, after in reversed(list(pairwise(commits))):
        if after.entry.cause == "rolled back":
            return None
        if after.entry.cause in replaced_by:
            return before, after
    if any(each.entry.cause == "input rebuilt" for each in commits):
        raise SluiceError(
            f"{table} was recomputed because a table that it is made from was. Roll back only that one, and the next "
            f"run recomputes {table}. Nothing was rolled back."
        )
    raise SluiceError(
        f"{table} was not promoted or rebuilt in the versions that its log keeps, so there is nothing to roll back."
    )
