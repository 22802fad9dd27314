"""When a table first had a record: computed from what the ledger says of its commits, without a look at the tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.model.ledger import Commit, Entry
from sluice.storage.delta import Lake

Partition = tuple[str, int]
Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]
Offsets = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Reach:
    """From a time on, a table has all records of each partition before these offsets."""

    since_ms: int
    next_offsets: Mapping[Partition, int]


def reaches(commits: Mapping[str, Sequence[Commit]], table: str) -> list[Reach]:
    """How far a table has come, after each commit that took it further; `commits` are those of all tables, by name.

    A commit upstream that changes no row takes it further too: the table has what follows from those records.
    """
    in_order = sorted(((each.timestamp_ms, name, each) for name, listed in commits.items() for each in listed), key=at)
    states: dict[tuple[str, int], Entry] = {}
    newest: int | None = None
    found: list[Reach] = []
    for time_ms, name, commit in in_order:
        version = commit.as_input.version
        states[name, version] = commit.entry
        newest = version if name == table else newest
        if newest is None:
            continue
        now = next_offsets(states, table, newest)
        if not found or now != found[-1].next_offsets:
            found.append(Reach(time_ms, now))
    return found


def at(each: tuple[int, str, Commit]) -> tuple[int, int]:
    return each[0], each[2].version


def next_offsets(states: Mapping[tuple[str, int], Entry], table: str, version: int) -> dict[Partition, int]:
    """The offsets before which a state of a table has all records; of one that it has by two ways the lesser."""
    entry = states.get((table, version))
    if entry is None:
        return {}
    if entry.landed:
        topic = table.partition(".")[2]
        return {(topic, partition): each.next_offset for partition, each in entry.landed.items()}
    found: dict[Partition, int] = {}
    for name, seen in entry.inputs.items():
        for partition, offset in next_offsets(states, name, seen.version).items():
            found[partition] = min(offset, found.get(partition, offset))
    return found


def reached_ms(found: Sequence[Reach], partition: Partition, offsets: Offsets) -> Numbers:
    """When a table first had each offset of a partition; not a number where it never had."""
    ends = np.maximum.accumulate([each.next_offsets.get(partition, 0) for each in found] or [0])
    times = np.array([*(float(each.since_ms) for each in found), *([] if found else [np.nan]), np.nan])
    result: Numbers = times[np.searchsorted(ends, offsets, side="right")]
    return result


def file_counts(lake: Lake, table: str) -> Iterator[tuple[int, int]]:
    """After each commit of a table: its time, and of how many files the table then is."""
    count = 0
    for version in sorted(map(int, lake.log_files(table))):
        commit = lake.commit_file(table, version)
        count += sum("add" in each for each in commit.actions) - sum("remove" in each for each in commit.actions)
        yield commit.timestamp_ms, count
