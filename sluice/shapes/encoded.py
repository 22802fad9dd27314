"""Records whose values are not JSON, decoded to it, each by the schema that it names."""

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from sluice.model.formats import Encoding, Protobuf, names_schemas, schema_fields
from sluice.shapes import avro, protobuf

if TYPE_CHECKING:
    from typing import Any

    from pyspark.sql import Column, DataFrame

decoded_type = "text string, fault string"
arrow_type = pa.struct([("text", pa.string()), ("fault", pa.string())])
schema_id = "_schema_id"
written_by = "_written_by"


def faults_of(encoding: Encoding) -> tuple[str, ...]:
    """The rules that values may break before they are JSON."""
    wire = avro.faults_of_wire_format if names_schemas(encoding) else ()
    of_format = protobuf.faults if isinstance(encoding, Protobuf) else avro.faults
    return (*wire, *[each for each in of_format if each not in (avro.too_large, avro.invalid_utf8)])


def known_schemas(records: "DataFrame") -> "DataFrame":
    """The schemas that records of their topic state, by id: the first in the log's order, since none ever changes."""
    text = F.col("value").cast("string")
    said = F.from_json(text, schema_fields)
    order = F.struct("timestamp", "partition", "offset")
    return (
        records.select(
            said.getField("id").alias(schema_id),
            said.getField("schema").alias("schema"),
            text.alias("text"),
            order.alias("at"),
        )
        # Python could not read a text that is no UTF-8.
        .where(f"{schema_id} IS NOT NULL AND schema IS NOT NULL AND is_valid_utf8(text)")
        .groupBy(schema_id)
        .agg(F.min_by("text", "at").alias(written_by))
    )


def with_text(records: "DataFrame", encoding: Encoding, bytes_max: int, schemas: "DataFrame | None") -> "DataFrame":
    """Bronze records with `_decoded`, the text of each value or the rule that it breaks, and the id of its schema."""
    value = F.when(F.octet_length("value") <= bytes_max, F.col("value"))
    named = records.withColumn(schema_id, schema_id_of(F.col("value")) if names_schemas(encoding) else F.lit(None))
    if schemas is None or not names_schemas(encoding):
        named = named.withColumn(written_by, F.lit(None).cast("string"))
    else:
        named = named.join(F.broadcast(schemas), schema_id, "left")
    return named.withColumn("_decoded", decoder(encoding, bytes_max)(value, F.col(written_by)))


def schema_id_of(value: "Column") -> "Column":
    """The id in Confluent's wire format: a zero, four bytes of an id, and the body; null where it is not so."""
    has_header = (F.octet_length(value) >= avro.header_bytes) & (F.substring(value, 1, 1) == F.lit(b"\x00"))
    return F.when(has_header, F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint"))


def decoder(encoding: Encoding, bytes_max: int) -> "Any":
    """The function of columns that decodes values, in the workers of Spark."""

    # Spark takes from the hints of what kind a function is.
    def decode(values: pa.Array, schemas: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        pairs = zip(values.to_pylist(), schemas.to_pylist(), strict=True)
        found = [decoded(encoding, bytes_max, value, schema) for value, schema in pairs]
        return pa.array([{"text": text, "fault": fault} for text, fault in found], arrow_type)

    return arrow_udf(decode, decoded_type)  # type: ignore[call-overload]


def decoded(encoding: Encoding, bytes_max: int, value: bytes | None, schema: str | None) -> avro.Decoded:
    """The text of one value, or the rule that it breaks; neither where there is no value."""
    if value is None:
        return None, None
    if not names_schemas(encoding):
        return decoded_plain(encoding, bytes_max, value)
    if len(value) < avro.header_bytes or value[0] != 0:
        return None, avro.no_schema_id
    if schema is None:
        return None, avro.unknown
    body = value[avro.header_bytes :]
    if isinstance(encoding, Protobuf):
        return protobuf.decoded(body, schema, encoding.reader, bytes_max, encoding.message)
    return avro.decoded(body, schema, encoding.reader, bytes_max)


def decoded_plain(encoding: Encoding, bytes_max: int, value: bytes) -> avro.Decoded:
    """The same of a value that names no schema: it was written by the reader's."""
    if isinstance(encoding, Protobuf):
        return protobuf.decoded_plain(value, str(encoding.reader), bytes_max, encoding.message)
    return avro.decoded(value, encoding.plain_writer, None, bytes_max)


def changed_ids(before: "DataFrame", now: "DataFrame") -> "DataFrame":
    """The ids whose schema is another now, or that had none."""
    was = before.withColumnRenamed(written_by, "_was")
    found = now.join(was, schema_id, "full")
    return found.where(~F.col(written_by).eqNullSafe(F.col("_was"))).select(schema_id, "_was")
