"""Writers' schemas by hand: records of the topic `sluice_schemas`, as a registry's are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from sluice.errors import UsageError
from sluice.log import AnyLog, Record, records_of_key
from sluice.shapes import avro, protobuf
from sluice.shapes.fates import schemas


def add_schema(log: AnyLog, number: int, file: Path, references: Mapping[str, Path]) -> None:
    """States the schema of an id, from files; a UsageError where they cannot be read, or are no schema."""
    kind = "PROTOBUF" if file.suffix == ".proto" else "AVRO"
    referred = [{"name": name, "schema": text_of(each)} for name, each in references.items()]
    said = {"id": number, "type": kind, "schema": text_of(file), **({"references": referred} if referred else {})}
    if not 0 <= number < 2**32:
        raise UsageError(f"{number} is no id of a schema: the wire format has ids from 0 to {2**32 - 1}.")
    record = orjson.dumps(said)
    reader = protobuf if kind == "PROTOBUF" else avro
    if reader.schema_of(record.decode()) is None:
        raise UsageError(f"{file} cannot be the schema of id {number}: no value can be read by it as {kind}.")
    earlier = stated(log, number)
    if earlier == said:
        return
    if earlier is not None:
        raise UsageError(
            f"Id {number} has another schema in the log already, and the first counts. Give the schema of {file} an id "
            "of its own, which its records name."
        )
    log.append(schemas.topic, [Record(record, key=str(number))])


def stated(log: AnyLog, number: int) -> Mapping[str, Any] | None:
    """The first schema that the log states for an id; None where there is none yet."""
    of_id = (each for each in records_of_key(log, schemas.topic, str(number)) if each.value)
    first = min(of_id, key=lambda each: each.offset, default=None)
    try:
        return None if first is None else dict(orjson.loads(first.value or b""))
    except (ValueError, TypeError):
        return None


def text_of(file: Path) -> str:
    """The text of a file; a UsageError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error
