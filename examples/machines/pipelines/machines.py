"""Reports in Avro, each with several readings; what readings that follow each other mean, and which people ask for."""

from pathlib import Path

from sluice import bronze, silver

reports = silver.events(
    "reports",
    source=bronze.topic("machine_reports", meaning="What machines send; the key of a record is the machine."),
    schema="report_id string, machine string, sent_at timestamp, "
    "readings array<struct<read_at: timestamp, degrees: double>>",
    keys=["report_id"],
    event_time="sent_at",
    format=silver.avro(schema=Path(__file__).parents[1] / "schemas" / "report.avsc", wire_format="plain"),
    from_record={"machine": "key"},
    meaning="Each report once.",
)
readings = silver.explode(
    "readings", source=reports, column="readings", ordinal="reading_number", meaning="Each reading of a report."
)
overheated = silver.pattern(
    "overheated",
    source=readings,
    keys=["machine"],
    order_by="read_at",
    pattern="START HOTTER{3,}",
    define={"HOTTER": "degrees > PREV(degrees) + 1"},
    within="1 hour",
    measures={"degrees_before": "START.degrees", "degrees_after": "LAST(HOTTER.degrees)"},
    meaning="Times in which a machine got hotter by more than a degree three times in a row, or more often.",
)
silent = silver.pattern(
    "silent",
    source=readings,
    keys=["machine"],
    order_by="read_at",
    pattern="SEEN NOT AGAIN",
    define={"AGAIN": "true"},
    within="1 hour",
    measures={"degrees": "SEEN.degrees"},
    meaning="Readings after which a machine says nothing for an hour.",
)
alerts = silver.standing_queries(
    "alerts",
    source=readings,
    queries=bronze.topic("machine_queries", meaning="Readings that people want to hear of."),
    event_time="read_at",
    columns=["machine", "degrees"],
    attributes="engineer string",
    meaning="Readings with each stored query that is true of them.",
)
