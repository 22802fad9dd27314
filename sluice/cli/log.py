"""`sluice log`: writes, reads and verifies the log."""

from dataclasses import asdict, astuple
from pathlib import Path
from typing import Annotated

import typer

from sluice.api import Project, require_project
from sluice.cli.options import AsJson, ProjectFolder, names_in, opened
from sluice.cli.printing import err, print_changed, print_json, print_table, printable
from sluice.errors import UsageError

log_app = typer.Typer(no_args_is_help=True, help="Write and read the log.")


@log_app.command("append")
def log_append(
    topic: str,
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="Values, one a line; - for standard input.")],
    project: ProjectFolder = Path(),
    key: Annotated[str | None, typer.Option(help="The key of every record.")] = None,
    key_field: Annotated[str | None, typer.Option(help="Take each record's key from this field of its JSON.")] = None,
) -> None:
    """Append the lines of FILE as records, durable when the command returns.

    Creates the topic if it does not exist, and warns if no dataset reads it. When it is cut off, some of the lines may
    be in the log, and would be there twice if you repeat it: `sluice log import` appends each row of a file once.
    """
    lines = (line.rstrip(b"\n") for line in file)
    with opened(project) as here:
        require_log(here)
        print_json(here.append(topic, lines, key=key, key_field=key_field))


@log_app.command("import")
def log_import(  # noqa: PLR0917 - options, each given by its name
    topic: str,
    files: Annotated[list[Path], typer.Argument(help="CSV, Parquet or JSON lines by their names, also .gz and .zst.")],
    project: ProjectFolder = Path(),
    key: Annotated[str | None, typer.Option(metavar="COLUMN", help="Take each record's key from this column.")] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Take each record's time from this column, RFC 3339.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Also write this column as a header of the record.")
    ] = None,
    types: Annotated[
        str, typer.Option(metavar="COLUMN=TYPE,…", help="CSV: columns that are number, boolean or json, and not text.")
    ] = "",
    delimiter: Annotated[str, typer.Option(help="CSV: what is between fields; \\t is a tab.")] = ",",
    null: Annotated[str, typer.Option(help="CSV: the text that stands for null.")] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad rows, and keep them in a file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Append the rows of files as records, each row once; after a kill, run it again and it continues."""
    with opened(project) as here:
        require_log(here)
        found = here.log.import_files(
            topic, *files, key=key, timestamp=timestamp, headers=header or (), types=types_of(types),
            delimiter="\t" if delimiter == "\\t" else delimiter, null=null, skip_bad=skip_bad,
        )  # fmt: skip
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(["file", "records", "new", "bad"], [[each.file, each.records, each.new, each.bad] for each in found])
    for each in found:
        if each.bad_file:
            err.print(f"Bad rows are in {each.bad_file}", highlight=False, markup=False, soft_wrap=True)


def require_log(here: Project) -> None:
    """A UsageError where a log would be made in a folder that is no project, and no setting says so."""
    if not here.settings.log:
        require_project(here.settings.project)


def types_of(text: str) -> dict[str, str]:
    """The types of columns from `COLUMN=TYPE,…`."""
    pairs = [each.rpartition("=") for each in names_in(text or None)]
    if any(not name for name, _, _ in pairs):
        raise UsageError(f"--types {text} is not COLUMN=TYPE,…")
    return {name.rstrip(): kind.lstrip() for name, _, kind in pairs}


@log_app.command("schema")
def log_schema(
    number: Annotated[int, typer.Argument(metavar="ID", help="The id that records name.")],
    file: Annotated[Path, typer.Argument(help="The schema: Avro (.avsc) or Protobuf (.proto).")],
    project: ProjectFolder = Path(),
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="A schema that it refers to, after those it needs."),
    ] = None,
) -> None:
    """Register the Avro or Protobuf schema of an id in the log, for records that no schema registry covers."""
    pairs = [each.partition("=") for each in reference or ()]
    if any(not name or not path for name, _, path in pairs):
        raise UsageError("--reference is NAME=FILE.")
    with opened(project) as here:
        here.log.add_schema(number, file, references={name: path for name, _, path in pairs})
    err.print(f"The schema of id {number} is in the log; the next run judges records that name it.", highlight=False)


@log_app.command("tail")
def log_tail(
    topic: str,
    project: ProjectFolder = Path(),
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many.")] = 10,
) -> None:
    """Print the newest records of a topic, one JSON object a line."""
    with opened(project) as here:
        found = here.log.tail(topic, records)
    for record in found:
        print_json(
            {
                "partition": record.partition,
                "offset": record.offset,
                "key": record.key,
                "timestamp": record.timestamp,
                "value": None if record.value is None else record.value.decode(errors="replace"),
                "headers": dict(record.headers),
            },
            indent=None,
        )


@log_app.command("topics")
def log_topics(project: ProjectFolder = Path(), as_json: AsJson = False) -> None:
    """List the topics with the offsets in each partition."""
    with opened(project) as here:
        found = here.log.topics()
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table(["topic", "partition", "start_offset", "end_offset"], [[*astuple(each)] for each in found])


@log_app.command("verify")
def log_verify(
    topics: Annotated[list[str] | None, typer.Argument(help="Without one, all.")] = None,
    project: ProjectFolder = Path(),
    as_json: AsJson = False,
) -> None:
    """Read the whole log, and name every segment that is not as it was written.

    Exit code 1 when there is one.
    """
    with opened(project) as here:
        found = here.log.verify(*topics or [])
    if as_json:
        print_json([asdict(partition) for partition in found])
    else:
        columns = ["topic", "partition", "segments", "with_checksums", "records", "faults"]
        rows = [[getattr(each, column) for column in columns[:-1]] + [len(each.faults)] for each in found]
        print_table(columns, rows)
    faults = [fault for partition in found for fault in partition.faults]
    for fault in faults:
        typer.echo(printable(fault), err=True)
    if faults:
        raise typer.Exit(1)


@log_app.command("retain")
def log_retain(  # noqa: PLR0917 - options, each given by its name
    topic: str,
    project: ProjectFolder = Path(),
    days: Annotated[float | None, typer.Option(help="Forget segments whose records are all older.")] = None,
    partition_bytes: Annotated[
        int | None, typer.Option(min=1, help="Forget the oldest segments of a partition that has more.")
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Keep only the newest record of each key.")] = False,
    tombstone_days: Annotated[
        float | None, typer.Option(min=0, help="How long --compact keeps tombstones; 1 by default.")
    ] = None,
    forever: Annotated[
        bool, typer.Option("--forever", help="Keep all records, also with maintain --log-keep-days.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set how long the landed records of a topic stay in the log; without options, show the setting.

    `sluice maintain` removes the others. Bronze keeps every record.
    """
    is_limited = days is not None or partition_bytes is not None or compact
    if forever and is_limited:
        raise UsageError("Give --forever, or what is to be forgotten, not both.")
    if tombstone_days is not None and not compact:
        raise UsageError("--tombstone-days is for --compact; give both.")
    with opened(project) as here:
        if is_limited or forever:
            said = here.log.retain(
                topic,
                days=days,
                partition_bytes=partition_bytes,
                compact=compact,
                tombstone_days=1.0 if tombstone_days is None else tombstone_days,
            )
        else:
            said = here.log.retention(topic)
    shown = said.model_dump()
    if as_json:
        print_json({"topic": topic, **shown})
    else:
        print_table(["topic", *shown], [[topic, *shown.values()]])


@log_app.command("skip")
def log_skip(
    topic: str,
    because: Annotated[str, typer.Option(help="Why; it stays in the ledger.")],
    project: ProjectFolder = Path(),
    as_json: AsJson = False,
) -> None:
    """Accept that records were lost before they landed, or that the log lost its end, and continue after them."""
    with opened(project) as here:
        skipped = here.log.skip(topic, because)
    print_changed("offsets skipped", skipped, as_json=as_json, by="partition")
