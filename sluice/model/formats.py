"""How the bytes of a record's value are encoded, where they are not JSON: Avro, and by which schema.

Spark sees none of this: a value is decoded to the JSON that the same event would have been, and judged as JSON is.
"""

import json
from dataclasses import dataclass
from typing import Literal

Envelope = Literal["json", "debezium"]
WireFormat = Literal["confluent", "plain"]
# Topics that have schemas: `{"id": 7, "type": "AVRO", "schema": "…", "references": ["…"]}`.
schema_fields = "id bigint, type string, schema string, references array<string>"


@dataclass(frozen=True)
class Avro:
    """Values in Avro's binary encoding.

    `plain` ones are all written by the schema `reader`. Those in Confluent's wire format name the schema that they were
    written by, and are read by `reader` where there is one.
    """

    wire_format: WireFormat = "confluent"
    reader: str | None = None

    @property
    def plain_writer(self) -> str:
        """The schema of plain values, as a record of the topic of schemas has one."""
        return json.dumps({"type": "AVRO", "schema": self.reader})


Encoding = Avro
Format = Envelope | Encoding


def is_encoded(format: Format) -> bool:  # noqa: A002 - what everybody calls it
    return not isinstance(format, str)


def names_schemas(format: Format) -> bool:  # noqa: A002
    """Whether records name the schema that they were written by."""
    return isinstance(format, Avro) and format.wire_format == "confluent"
