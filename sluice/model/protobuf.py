"""Protobuf's schemas: compiled from their text, and described as records, so that columns are checked against them."""

import errno
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from sluice.errors import DeclarationError
from sluice.model.avro import Parsed, UnusableSchema, ours, require_columns_fit

Descriptor = Any
main_file = "sluice_main.proto"
faults_of_names = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL)
timestamp = "google.protobuf.Timestamp"
wrappers = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
# The numbers of FieldDescriptor.TYPE_…, which is not imported where no format is Protobuf.
double, single, boolean, string, content, enumeration = 1, 2, 8, 9, 12, 14
int32, uint32, sint32, fixed32, sfixed32 = 5, 13, 17, 7, 15
int64, uint64, sint64, fixed64, sfixed64 = 3, 4, 18, 6, 16
simple_types = {
    double: "double",
    single: "float",
    boolean: "boolean",
    string: "string",
    content: "bytes",
    enumeration: "enum",
    **dict.fromkeys((int32, sint32, sfixed32), "int"),
    # An unsigned one of 32 bits is more than an int.
    **dict.fromkeys((int64, uint64, sint64, fixed64, sfixed64, uint32, fixed32), "long"),
}
# The types by which a writer's can be read, as all of its values are the same there. Protobuf reads others, too, as
# other values or as if they were not set.
wider = {
    int32: (int64, enumeration),
    uint32: (uint64, int64),
    sint32: (sint64,),
    boolean: (int32, int64, uint32, uint64),
    enumeration: (int32, int64),
    string: (content,),
    content: (string,),
}


@dataclass(frozen=True)
class Compiled:
    """The file of a schema, compiled together with what it imports."""

    file: Descriptor

    def message(self, name: str | None) -> Descriptor:
        """The message of this name, without the package or with it; the first one where no name is given."""
        found = list(self.file.message_types_by_name.values())
        if name is None and found:
            return found[0]
        known = {each.full_name: each for each in all_of(found)}
        package = f"{self.file.package}." if self.file.package else ""
        if name in known or f"{package}{name}" in known:
            return known.get(str(name)) or known[f"{package}{name}"]
        raise UnusableSchema(f"there is no message {name}; there are {', '.join(known) or 'none'}")

    def at(self, places: list[int]) -> Descriptor:
        """The message at a place, as Confluent's wire format names it; an IndexError if there is none."""
        found = list(self.file.message_types_by_name.values())[places[0]]
        for place in places[1:]:
            found = found.nested_types[place]
        if found.GetOptions().map_entry:
            raise IndexError("an entry of a map is no message")
        return found


def all_of(messages: list[Descriptor]) -> list[Descriptor]:
    """Messages, and those that are declared inside of them."""
    return [each for one in messages for each in (one, *all_of(list(one.nested_types)))]


def compiled(text: str, references: Mapping[str, str] | None = None) -> Compiled:
    """The schema in a text, with the files that it imports. Raises UnusableSchema."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    protoc = imported()
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(aside)
        for name, each in {**(references or {}), main_file: text}.items():
            place = (folder / name).resolve()
            if not place.is_relative_to(folder.resolve()):
                raise UnusableSchema(f"{name} cannot be the name of a file")
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(each, encoding="utf-8")
            except OSError as error:
                # A full disk, for example, says nothing about the schema.
                if error.errno not in faults_of_names:
                    raise
                raise UnusableSchema(f"{name[:100]} cannot be the name of a file") from error
        made = folder / "compiled"
        standard = str(files("grpc_tools") / "_proto")
        options = [f"-I{folder}", f"-I{standard}", "--include_imports", f"--descriptor_set_out={made}"]
        if protoc.main(["protoc", *options, main_file]) or not made.exists():
            raise UnusableSchema("protoc cannot compile it; it says why in the log")
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(made.read_bytes()).file:
            pool.Add(file)
    return Compiled(pool.FindFileByName(main_file))


def imported() -> Any:
    """The compiler of schemas; a DeclarationError where it is not installed."""
    try:
        from grpc_tools import protoc
    except ImportError as error:
        raise DeclarationError(
            "format is Protobuf, and grpcio-tools is not installed: pip install 'sluice-lakehouse[formats]'"
        ) from error
    return protoc


def require_fit(dataset: str, text: str, message: str | None, types: Mapping[str, str], epochs: list[str]) -> None:
    """A DeclarationError for a schema that is none, or that the columns do not fit."""
    try:
        found = compiled(text).message(message)
    except UnusableSchema as error:
        raise DeclarationError(f"{dataset}: the schema of its format cannot be used: {error}") from error
    names: dict[str, Any] = {}
    described(found, names)
    require_columns_fit(dataset, Parsed(names[found.full_name], names), types, epochs)


def described(message: Descriptor, names: dict[str, Any]) -> str:
    """The name of a message, which is described in `names` as Avro describes a record."""
    if message.full_name not in names:
        names[message.full_name] = {"type": "record", "name": message.full_name, "fields": []}
        fields = [{"name": each.name, "type": type_of(each, names)} for each in message.fields]
        names[message.full_name]["fields"] += fields
    return str(message.full_name)


def type_of(field: Descriptor, names: dict[str, Any]) -> Any:
    """The type of a field in words of Avro."""
    if is_map(field):
        key, value = (one_of(field.message_type.fields_by_name[name], names) for name in ("key", "value"))
        return {"type": "map", "keys": key, "values": value}
    found = one_of(field, names)
    return {"type": "array", "items": found} if field.is_repeated else found


def one_of(field: Descriptor, names: dict[str, Any]) -> Any:
    """The type of one value of a field."""
    if field.message_type is None:
        return {"type": simple_types.get(field.type, "unknown")}
    name = field.message_type.full_name
    if name == timestamp:
        return {"type": "long", "logicalType": f"{ours}timestamp-nanos"}
    if name in wrappers:
        return one_of(field.message_type.fields_by_name["value"], names)
    return described(field.message_type, names)


def is_map(field: Descriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
