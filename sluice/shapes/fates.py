"""Fates: what became of every record that a dataset consumes, so that none is lost silently.

An accepted record is the row that carries its position. The others stand in `silver._fates`: a duplicate with the
position of the winner, a quarantined record with the rule that it breaks, a late one with `late`, an erased one with
`erased`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from sluice.model import integrity as laws
from sluice.model.datasets import (
    Dataset,
    Frames,
    Input,
    Output,
    Retraction,
    Topic,
    require_columns,
    require_duration,
    same_names,
)
from sluice.model.expectations import Expectation
from sluice.model.frames import dropped, nulled, selected, where_equal, where_null, with_constant
from sluice.model.lineage import Lineage, Made, Source
from sluice.model.prepared import shared
from sluice.model.record_columns import columns_of
from sluice.model.rules import require_fit
from sluice.model.small_frames import frame_of, is_known_empty, known_rows
from sluice.model.specification import Specification
from sluice.shapes.avro import unknown
from sluice.shapes.canonical import key_text
from sluice.shapes.deduplicate import deduplicate, verdict
from sluice.shapes.encoded import changed_ids, known_schemas, schema_id, schema_id_of
from sluice.shapes.few_fates import judged_few, reached_by_few
from sluice.shapes.parse import (
    Parsing,
    bronze_position,
    erased,
    late,
    parse,
    position,
    position_text,
    said_of,
    with_key,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sluice.model.scope import Scope

fates_table = "silver._fates"
# `sluice quarantine release` writes to the log, so a rebuild applies it too.
releases = Topic("bronze.sluice_releases", "sluice_releases", "Quarantined records that were released.", optional=True)
envelope_types = {"op": "string", "committed_at": "timestamp", "lsn": "bigint", "transaction_order": "bigint"}
release_schema = (
    "dataset string, topic string, partition int, offset bigint, because string, do string, timestamp_ms bigint"
)
releases_input = "releases"
# The writers' schemas, from a registry or by hand. Whatever becomes of the registry, a rebuild has them.
schemas = Topic("bronze.sluice_schemas", "sluice_schemas", "The schemas that records were written by.", optional=True)
schemas_input = "schemas"
# The rule of the records that `sluice quarantine add` sets aside.
by_command = "by_command"
reached_schema = StructType().add("partition", "string").add("event_time", "timestamp").add("log_time", "timestamp")


@dataclass(frozen=True)
class Events(Specification):
    """The records of topics: how they are parsed, and their key."""

    kind, version = "events", 5
    sources: list[str]
    distinct: tuple[str, ...]
    parsing: Parsing


@dataclass(frozen=True)
class Reading:
    """How records become rows with a key: as declared, with the commands about them, and their writers' schemas."""

    parsing: Parsing
    distinct: tuple[str, ...]
    said: "DataFrame | None" = None
    schemas: "DataFrame | None" = None

    @property
    def is_judged_again(self) -> bool:
        """Whether records that were judged before may be judged otherwise now."""
        return self.said is not None or self.schemas is not None

    def parse(self, records: "DataFrame") -> "DataFrame":
        """The records as rows with their key in `_key`; those that are parsed already stay as they are."""
        if is_parsed(records):
            return records
        return parse(records, self.parsing, self.said, self.schemas, self.distinct)

    def parse_all(self, frames: "Sequence[DataFrame]") -> "DataFrame":
        """The same of records that are parsed already and others, which are parsed together."""
        done = [each for each in frames if is_parsed(each)]
        others = [each for each in frames if not is_parsed(each) and not (done and is_known_empty(each))]
        return union([*done, *([self.parse(union(others))] if others else [])])

    def either_way_with_siblings(self, parsed: "DataFrame", records: "DataFrame") -> "DataFrame":
        """The scope of all records with the key of one of the parsed ones."""
        return either_way(siblings_of(parsed, self.parse(records), self.distinct), self.distinct)


def is_parsed(records: "DataFrame") -> bool:
    return "_rule" in records.columns


def known(records: "DataFrame | None") -> "DataFrame | None":
    """The schemas by their ids, where there are any."""
    return None if records is None else known_schemas(records)


def event_dataset(
    name: str,
    *,
    sources: tuple[Topic, ...],
    parsing: Parsing,
    distinct: tuple[str, ...],
    meaning: str,
    idle_after: str | None = None,
) -> Dataset:
    """Records identified by the columns `distinct`, which may include the bookkeeping column `_digest`."""
    require_duration(name, "idle_after", idle_after)
    arrivals = {f"arrivals_{topic.topic}": topic for topic in sources}

    def reading(inputs: Frames) -> Reading:
        said = commanded(inputs[releases_input], name) if releases_input in inputs else None
        return Reading(parsing, distinct, said, known(inputs.get(schemas_input)))

    return Dataset(
        name=name,
        inputs={
            **{
                alias: Input(
                    topic,
                    scope=lambda changed, inputs: touched_keys(changed, reading(inputs)),
                    within=records_within,
                    arrivals=True,
                    read=lambda records, inputs: reading(inputs).parse(records),
                    retraction=Retraction(
                        scope=lambda gone, inputs: touched_by_erasure(
                            gone, [inputs[alias] for alias in arrivals], reading(inputs)
                        ),
                        own=partial(without_positions, table=name),
                    ),
                )
                for alias, topic in arrivals.items()
            },
            releases_input: Input(
                releases,
                scope=lambda changed, inputs: touched_by_command(
                    commanded(changed, name), [inputs[alias] for alias in arrivals], reading(inputs)
                ),
                within=lambda df, scope: commanded(df, name),
            ),
            **(
                {
                    schemas_input: Input(
                        schemas,
                        scope=lambda changed, inputs: touched_by_schemas(
                            inputs[schemas_input], changed, [inputs[alias] for alias in arrivals], reading(inputs)
                        ),
                        within=lambda df, scope: df,
                    )
                }
                if parsing.names_schemas
                else {}
            ),
        },
        outputs=event_outputs(name, distinct, parsing.event_time),
        shape=lambda rows, own: judge(
            [rows[alias] for alias in arrivals],
            Reading(parsing, distinct, rows.get(releases_input), known(rows.get(schemas_input))),
            table=name,
            own=own,
        ),
        specification=Events([topic.name for topic in sources], distinct, parsing),
        meaning=meaning,
        keys=distinct,
        event_time=parsing.event_time,
        topics=tuple(topic.topic for topic in sources),
        idle_after=idle_after,
        reached=partial(reached_by, event_time=parsing.event_time),
        bounded=laws.of_records(name),
        columns={**parsing.types, **(envelope_types if parsing.is_debezium else {})},
        lineage=lambda: lineage_of(parsing, [topic.name for topic in sources]),
        with_expectations=lambda expected: event_dataset(
            name,
            sources=sources,
            parsing=replace(parsing, expectations=checked_rules(name, parsing, expected)),
            distinct=distinct,
            meaning=meaning,
            idle_after=idle_after,
        ),
    )


def lineage_of(parsing: Parsing, tables: Sequence[str]) -> Lineage:
    """The lineage of parsed records: each column is a field of the record, and the record decides its fate."""
    values = [Source(table, "value", "transformation") for table in tables]
    record = "row in Debezium's envelope" if parsing.is_debezium else "value" if parsing.is_encoded else "JSON"
    row = f"the field {{}} of the {record}"
    columns = {name: Made(tuple(values), by=row.format(name)) for name in parsing.types}
    for name, each in columns_of(parsing.record_columns).items():
        column = "value" if each.of == "value IS NULL" else each.of
        around = tuple(Source(table, column, "transformation") for table in tables)
        columns[name] = Made(around, by=f"{parsing.record_columns[name]} of the record")
    if parsing.is_debezium:
        columns |= {name: Made(tuple(values), by=f"{name} of Debezium's envelope") for name in envelope_types}
    if parsing.event_time and parsing.sent_time:
        received = parsing.received_time or "the log's timestamp"
        log_times = [] if parsing.received_time else [Source(table, "timestamp", "transformation") for table in tables]
        by = f"{parsing.event_time} + ({received} - {parsing.sent_time}), fields of the JSON"
        columns[parsing.event_time] = Made((*values, *log_times), by=by)
    beside = (releases.name, *([schemas.name] if parsing.names_schemas else []))
    decides = [Source(table, "value", "filter") for table in (*tables, *beside)]
    return Lineage(columns, tuple(decides))


def checked_rules(name: str, parsing: Parsing, expected: Iterable[Expectation]) -> tuple[Expectation, ...]:
    """Row rules; a DeclarationError where one asks for what the schema has not."""
    rules = tuple(expected)
    for each in rules:
        require_columns(f"{name}: {each.name}", "column", (each.arguments["column"],), tuple(parsing.types))
        require_fit(each, parsing.types[each.arguments["column"]])
    return rules


def judge(records: "Sequence[DataFrame]", reading: Reading, *, table: str, own: Frames) -> "DataFrame":
    """Every record of a scope with its fate (`_fate` null: accepted), reason and detail.

    The scope is the new `records`, those with commands, or with a schema that is known now, and those judged before, in
    `own`, that share a key with them.
    """
    # One pass for good and bad: a filter on the rule would parse every record again for each column it reads.
    parsed = reading.parse_all(records)
    few = judged_by_driver(parsed, reading, table=table, own=own)
    if few is not None:
        return few
    candidates = as_said(parsed, reading)
    before = judged_before(own, table, reading.distinct)
    if reading.is_judged_again:
        # A record that was judged before a command, or before its schema, is judged again, from bronze.
        again = F.broadcast(parsed.select(*position))
        before = [each.join(again, list(position), "left_anti") for each in before]
    for rows in before[:1]:
        candidates = candidates.unionByName(rows, allowMissingColumns=True)
    fated = with_fates_and_ids if reading.parsing.names_schemas else with_fates
    return shared(fated).of(candidates, *before[1:])


def with_fates(candidates: "DataFrame", duplicates: "DataFrame | None" = None) -> "DataFrame":
    """The candidates with their fates; `duplicates` are former ones."""
    is_good = F.col("_rule").isNull()
    rejected = F.when(F.col("_rule").isin(late, erased), F.col("_rule")).otherwise("quarantined")
    return deduplicate(candidates, duplicates).withColumns(
        {
            "_fate": F.when(is_good, F.col("_fate")).otherwise(rejected),
            "_reason": F.when(is_good, F.col("_reason")).otherwise(F.col("_rule")),
        }
    )


def with_fates_and_ids(candidates: "DataFrame", duplicates: "DataFrame | None" = None) -> "DataFrame":
    """The same of records that name the schema that they were written by."""
    return with_fates(candidates, duplicates).withColumn("_detail", with_schema_id())


def judged_by_driver(parsed: "DataFrame", reading: Reading, *, table: str, own: Frames) -> "DataFrame | None":
    """The same where the driver has all that is judged; None where it has not, or where rows are judged again."""
    records = known_rows(parsed)
    if records is None or reading.is_judged_again or reading.parsing.names_schemas:
        return None
    before = [known_rows(own[table]), known_rows(duplicates_in(own[fates_table]))] if own else []
    found = judged_few(records, before, reading.distinct)
    if found is None:
        return None
    schema = StructType([*parsed.schema, *[StructField(name, StringType()) for name in verdict]])
    return frame_of(parsed.sparkSession, found, schema)


def with_schema_id() -> "Column":
    """The detail of a fate; of a record whose schema is not known, the id of that schema."""
    is_unknown = F.coalesce(F.col("_rule") == unknown, F.lit(False))
    return F.when(is_unknown, F.col(schema_id).cast("string")).otherwise(F.col("_detail"))


def as_said(parsed: "DataFrame", reading: Reading) -> "DataFrame":
    """The parsed records: released ones without the rules that can be lifted, held ones with one more rule.

    It stays beside the others: whoever releases all late records does not mean one that a person set aside.
    """
    if reading.said is None:
        return parsed
    marked = parsed.join(F.broadcast(reading.said), list(position), "left")
    waivable = F.array(*[F.lit(rule) for rule in reading.parsing.waivable])
    is_held = F.coalesce(said_of("_timestamp"), F.lit(False))
    is_lifted = ~is_held & (F.size(F.array_except(F.split("_rule", ","), waivable)) == 0)
    is_erased = F.coalesce(F.col("_rule") == erased, F.lit(False))
    rule = F.when(is_held & ~is_erased, F.concat_ws(",", "_rule", F.lit(by_command))).when(
        said_of("_timestamp").isNull() | ~F.coalesce(is_lifted, F.lit(False)), F.col("_rule")
    )
    return with_key(marked.withColumn("_rule", rule).select(parsed.columns), reading.distinct)


def judged_before(own: Frames, table: str, distinct: tuple[str, ...]) -> "list[DataFrame]":
    """The accepted rows of a scope, and its duplicates, to be judged again; nothing where all of it is."""
    if not own:
        return []
    return [own[table].withColumn("_key", key_text(own[table], distinct)), duplicates_in(own[fates_table])]


def duplicates_in(fates: "DataFrame") -> "DataFrame":
    """The duplicates of a scope, in the columns of parsed records."""
    columns = {column: column.removeprefix("_") for column in position}
    columns |= {name: name for name in ("_timestamp", "_digest", "_key")}
    return selected(where_equal(fates, "fate", "duplicate"), columns)


def touched_keys(records: "DataFrame", reading: Reading) -> "DataFrame":
    """The scope of new records: their key columns, and the text by which `silver._fates` knows the key.

    A record with a command from before it landed is judged by it, so it is in the scope either way.
    """
    parsed, distinct, said = reading.parse(records), reading.distinct, reading.said
    names = {name: name for name in (*distinct, "_key")}
    touched = selected(nulled(parsed, distinct, unless_null="_rule"), names)
    if said is None:
        return touched
    spoken_of = parsed.join(F.broadcast(said.select(*position)), list(position), "left_semi")
    return touched.unionByName(either_way(spoken_of, distinct).drop(*position))


def touched_by_command(newly_said: "DataFrame", topics: "Iterable[DataFrame]", reading: Reading) -> "DataFrame":
    """The scope of records that new commands name: their former fate, their key, and their place in bronze.

    If a record is set aside, all records of its key are in the scope too, because another may be accepted in its place.
    They are looked up in bronze: a run that ended between two commits leaves some of them without a fate.
    """
    places = list(bronze_position)
    records = union(topics)
    wanted = newly_said.select(*[F.col(f"_{column}").alias(column) for column in places])
    parsed = reading.parse(records.join(F.broadcast(wanted), places, "left_semi"))
    touched = either_way(parsed, reading.distinct)
    held = newly_said.where("_is_held").select(*position)
    if held.isEmpty():
        return touched
    keys = parsed.join(F.broadcast(held), list(position), "left_semi")
    return touched.unionByName(reading.either_way_with_siblings(keys, records))


def touched_by_schemas(
    records_of_schemas: "DataFrame", changed: "DataFrame", topics: "Iterable[DataFrame]", reading: Reading
) -> "DataFrame":
    """The scope of records whose schema is known now, or is another: they, and those that shared a key with them."""
    places = list(bronze_position)
    before = known_schemas(records_of_schemas.join(F.broadcast(changed.select(*places)), places, "left_anti"))
    ids = changed_ids(before, known_schemas(records_of_schemas)).localCheckpoint()
    records = union(topics)
    named = records.withColumn(schema_id, schema_id_of(F.col("value")))
    found = named.join(F.broadcast(ids), schema_id, "left_semi").drop(schema_id)
    touched = either_way(reading.parse(found), reading.distinct)
    if ids.where("_was IS NOT NULL").isEmpty():
        return touched
    # Rows were made by a schema that no longer counts, so another record may be the first of their keys.
    as_before = replace(reading, schemas=before).parse(found)
    return touched.unionByName(either_way(as_before, reading.distinct)).unionByName(
        reading.either_way_with_siblings(as_before, records)
    )


def touched_by_erasure(gone: "DataFrame", topics: "Iterable[DataFrame]", reading: Reading) -> "DataFrame":
    """The scope of records that were erased, given their old images: they, and all others of their keys."""
    old = reading.parse(gone)
    return either_way(old, reading.distinct).unionByName(reading.either_way_with_siblings(old, union(topics)))


def siblings_of(parsed: "DataFrame", others: "DataFrame", distinct: tuple[str, ...]) -> "DataFrame":
    """Those of the other parsed records that have the key of one of these."""
    keys = parsed.select(key_text(parsed, distinct).alias("_key")).distinct()
    found = others.withColumn("_key", key_text(others, distinct)).join(F.broadcast(keys), "_key", "left_semi")
    return found.drop("_key")


def without_positions(own: Frames, gone: "DataFrame", table: str) -> Frames:
    """The accepted records and the fates without those at the positions of bronze records."""
    places = F.broadcast(gone.select(*bronze_position).distinct())
    in_table = places.withColumnsRenamed(dict(zip(bronze_position, position, strict=True)))
    return {
        **own,
        fates_table: own[fates_table].join(places, list(bronze_position), "left_anti"),
        table: own[table].join(in_table, list(position), "left_anti"),
    }


def either_way(parsed: "DataFrame", distinct: tuple[str, ...]) -> "DataFrame":
    """The scope of records that may be accepted or not: by their key, and by their position."""
    by_position = parsed.select(
        *[F.lit(None).cast(parsed.schema[name].dataType).alias(name) for name in distinct],
        position_text().alias("_key"),
        *position,
    )
    return parsed.select(*distinct, key_text(parsed, distinct).alias("_key"), *position).unionByName(by_position)


def records_within(df: "DataFrame", scope: "Scope") -> "DataFrame":
    """The records in bronze that the scope names by position: those with a command."""
    if scope.is_everything:
        return df
    if "_offset" not in scope.bounds:
        return frame_of(df.sparkSession, None, df.schema)
    return scope.filter(df, [(column.removeprefix("_"), column) for column in position])


def commanded(records: "DataFrame", dataset: str) -> "DataFrame":
    """The last command about each record of one dataset: its position, and whether it is held (or released).

    `_said_of_ms` is the record's timestamp: a topic that was made again has another record at the same position. It is
    null in commands of older releases.
    """
    said = F.from_json(F.col("value").cast("string"), release_schema)
    order = F.struct("timestamp", "partition", "offset")
    is_hold = F.coalesce(F.col("said.do") == "hold", F.lit(False))
    return (
        records.select(said.alias("said"), order.alias("at"))
        .where(F.col("said.dataset") == dataset)
        .groupBy(*[F.col(f"said.{column.removeprefix('_')}").alias(column) for column in position])
        .agg(F.max_by(is_hold, "at").alias("_is_held"), F.max_by("said.timestamp_ms", "at").alias("_said_of_ms"))
    )


def union(frames: "Iterable[DataFrame]") -> "DataFrame":
    return reduce(lambda left, right: left.unionByName(right), frames)


def reached_by(judged: "DataFrame", event_time: str | None) -> "DataFrame":
    """For each partition (`topic/partition`) the latest event time of a usable record, and the latest log time.

    Event time never counts for more than the log's own: a record of the future, released or tolerated, is no progress.
    Duplicates that were judged before are here without their event time, which was counted then.
    """
    known = known_rows(judged)
    if known is not None:
        return frame_of(judged.sparkSession, reached_by_few(known, event_time), reached_schema)
    is_usable = F.col("_fate").isNull() | (F.col("_fate") == "duplicate")
    event = F.lit(None).cast("timestamp")
    if event_time:
        # The least of null and a time is the time.
        event = F.when(F.col(event_time).isNotNull(), F.least(event_time, "_timestamp"))
    partition = F.concat_ws("/", "_topic", "_partition").alias("partition")
    return judged.groupBy(partition).agg(
        F.max(F.when(is_usable, event)).alias("event_time"), F.max("_timestamp").alias("log_time")
    )


def event_outputs(name: str, distinct: tuple[str, ...], event_time: str | None) -> tuple[Output, ...]:
    """First the fates of the records that are not accepted, then the table of those that are."""
    rejected = Output(
        fates_table,
        grain=("dataset", *[column.removeprefix("_") for column in position]),
        scope_columns=(("_key", "_key"),),
        select=lambda judged: fate_rows(judged, name),
        slice=(("dataset", name),),
        cluster_by=("_key",),
    )
    accepted = Output(
        name,
        grain=distinct,
        scope_columns=same_names(distinct),
        select=lambda judged: dropped(where_null(judged, "_fate"), *verdict, "_key", "_rule"),
        cluster_by=(event_time,) if event_time else distinct[:1],
    )
    return (rejected, accepted)


def fate_rows(judged: "DataFrame", dataset: str) -> "DataFrame":
    """The rejected records of one dataset as rows of `silver._fates`."""
    # Records may have columns of these names; those that begin with _ are ours.
    rejected = with_constant(where_null(judged, "_fate", is_null=False), "_dataset", dataset)
    columns = {column.removeprefix("_"): column for column in ("_dataset", *position, *verdict)}
    return selected(rejected, columns | {name: name for name in ("_key", "_timestamp", "_digest")})
