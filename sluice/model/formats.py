"""How the bytes of a record's value are encoded, where they are not JSON: Avro or Protobuf, and by which schema.

Spark sees none of this: a value is decoded to the JSON that the same event would have been, and judged as JSON is.
"""

import json
from dataclasses import dataclass
from typing import Literal

Envelope = Literal["json", "debezium"]
WireFormat = Literal["confluent", "plain"]
# What Spark reads of a record of the topic of schemas: `{"id": 7, "type": "AVRO", "schema": "…", "references": […]}`.
schema_fields = "id bigint, schema string"


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


@dataclass(frozen=True)
class Protobuf:
    """The same in Protobuf's encoding; values are of the `message` of the reader's schema, by default its first."""

    wire_format: WireFormat = "confluent"
    reader: str | None = None
    message: str | None = None


Encoding = Avro | Protobuf
Format = Envelope | Encoding


def names_schemas(format: Format) -> bool:  # noqa: A002 - what everybody calls it
    """Whether records name the schema that they were written by."""
    return not isinstance(format, str) and format.wire_format == "confluent"
