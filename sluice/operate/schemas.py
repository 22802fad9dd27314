"""Writers' schemas by hand: records of the topic `sluice_schemas`, as a registry's are."""

from collections.abc import Mapping
from pathlib import Path

import orjson

from sluice.errors import UsageError
from sluice.log import AnyLog, Record
from sluice.shapes import avro, protobuf
from sluice.shapes.fates import schemas


def add_schema(log: AnyLog, number: int, file: Path, references: Mapping[str, Path]) -> None:
    """States the schema of an id, from files; a UsageError where they cannot be read, or are no schema."""
    kind = "PROTOBUF" if file.suffix == ".proto" else "AVRO"
    referred = [{"name": name, "schema": text_of(each)} for name, each in references.items()]
    said = {"id": number, "type": kind, "schema": text_of(file), **({"references": referred} if referred else {})}
    record = orjson.dumps(said)
    reader = protobuf if kind == "PROTOBUF" else avro
    if not 0 <= number < 2**32 or reader.schema_of(record.decode()) is None:
        raise UsageError(f"{file} cannot be the schema of id {number}: values cannot be read by it as {kind}.")
    log.append(schemas.topic, [Record(record, key=str(number))])


def text_of(file: Path) -> str:
    """The text of a file; a UsageError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from error
