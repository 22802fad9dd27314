"""The fingerprint of a declaration: it changes when the declaration does, or any code and constant that it reaches.

What a user's function reaches is followed through the project's own modules: functions, classes, constants, closures,
defaults, decorators. Code is compared by its syntax tree, so comments, formatting, docstrings and line numbers do not
count, nor does the version of Python. What the engine and installed packages offer counts by its name.
"""

import ast
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import json
import logging
import operator
import pathlib
import re
import types
import uuid
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.errors import DeclarationError
from sluice.model import source
from sluice.model.specification import Specification

Encoded = Any

# Values whose `repr` says all that they are, and the same in every process.
literals = (
    decimal.Decimal,
    fractions.Fraction,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    zoneinfo.ZoneInfo,
    uuid.UUID,
    range,
    slice,
    complex,
    types.GenericAlias,
    types.UnionType,
    types.EllipsisType,
    types.NotImplementedType,
)
collections: tuple[Any, ...] = (tuple, list, set, frozenset, dict)


def fingerprint(name: str, declaration: Mapping[str, Any]) -> str:
    """A short hash of a declaration. One with a `version` may reach values that cannot be followed."""
    return hashed(name, dict(sorted(declaration.items())), has_version="version" in declaration)[:16]


def of_fields(name: str, declaration: Mapping[str, Any]) -> dict[str, str]:
    """A hash of each field of a declaration, by which is said what changed."""
    found: dict[str, Any] = {}
    for key, value in declaration.items():
        if dataclasses.is_dataclass(value) and source.is_engine(type(value).__module__):
            found |= {f"{key}.{each.name}": getattr(value, each.name) for each in dataclasses.fields(value)}
        else:
            found[key] = value
    return {key: hashed(name, each, has_version="version" in declaration)[:8] for key, each in found.items()}


def hashed(name: str, value: object, *, has_version: bool) -> str:
    encoder = Encoder(name, has_version=has_version)
    try:
        found = encoder.encode(value)
    except source.NoSource as error:
        raise DeclarationError(
            f"{name}: {error} has no source that can be read, so its changes could not be noticed; define it in a "
            "file of the project, and import it at the top"
        ) from error
    text = json.dumps(found, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Encoder:
    """Encodes values as JSON, each with its type, so that no two values have one encoding."""

    dataset: str
    has_version: bool = False
    # What was met, by identity, numbered in the order of the code: code may refer to itself.
    met: dict[int, tuple[int, object]] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)

    def encode(self, value: object) -> Encoded:
        if value is None or type(value) in (bool, str):
            return value
        if type(value) in (int, float, bytes) or isinstance(value, literals):
            return [type(value).__name__, repr(value)]
        if type(value) in collections:
            return self.collection(value)
        if id(value) in self.met:
            return ["met", self.met[id(value)][0]]
        self.met[id(value)] = (len(self.met), value)
        for kind, encoder in encoders:
            if isinstance(value, kind):
                return encoder(self, value)
        return self.instance(value)

    def at(self, step: str, value: object) -> Encoded:
        """The encoding of what is found one step further; an error says which steps led to it."""
        self.path.append(step)
        found = self.encode(value)
        self.path.pop()
        return found

    def collection(self, value: Any) -> Encoded:
        if isinstance(value, dict):
            # In its order, which code can see.
            return ["dict", *[[self.encode(key), self.at(str(key), each)] for key, each in value.items()]]
        found = [self.encode(each) for each in value]
        return [type(value).__name__, *(sorted(found, key=json.dumps) if isinstance(value, set | frozenset) else found)]

    def function(self, function: types.FunctionType) -> Encoded:
        attributes = dict(vars(function))
        wrapped = attributes.pop("__wrapped__", None)
        if not source.is_own_function(function):
            said = [attributes.get(name) for name in ("returnType", "registry")] if wrapped else []
            return ["named", named(function), *map(self.encode, [wrapped, *said])]
        node = source.definition_of(function)
        inner = dict(source.imported(node, str(function.__globals__.get("__package__") or "")))
        names = {*source.names_of(function, node), *inner}
        return [
            "function",
            source.tree(node),
            [self.at(f"a default of {function.__name__}", value) for value in function.__defaults__ or ()],
            {key: self.at(key, value) for key, value in sorted((function.__kwdefaults__ or {}).items())},
            self.reached(node, source.closure_of(function)),
            self.reached(node, source.used(names, {**function.__globals__, **inner})),
            [self.encode(attributes), self.encode(wrapped)],
        ]

    def reached(self, node: ast.AST, known: Mapping[str, Any]) -> Encoded:
        """What names stand for; of a module of the project, what the code takes from it."""
        found = {}
        for name, value in known.items():
            if isinstance(value, types.ModuleType) and source.is_project(value.__name__):
                for chain in source.chains(node, name):
                    found[".".join(chain)] = self.attribute(value, chain)
            else:
                found[name] = self.at(name, value)
        return found

    def attribute(self, module: types.ModuleType, chain: tuple[str, ...]) -> Encoded:
        """What `module.a.b` stands for: modules are followed to the first value that is not a module."""
        found: object = module
        for step in chain[1:]:
            if not isinstance(found, types.ModuleType) or not source.is_project(found.__name__):
                break
            found = getattr(found, step, None)
        return self.at(".".join(chain), found)

    def module(self, module: types.ModuleType) -> Encoded:
        """A module that is used as a value: by its name, or all that it has where it is the project's."""
        if not source.is_project(module.__name__):
            return ["named", module.__name__]
        members = {name: value for name, value in sorted(vars(module).items()) if not name.startswith("__")}
        return ["module", {name: self.at(name, value) for name, value in members.items()}]

    def kind(self, kind: type) -> Encoded:
        """A class: its definition, what that reaches, and the constants that it has now."""
        if not source.is_project(kind.__module__):
            return ["named", named(kind)]
        if issubclass(kind, tuple) and hasattr(kind, "_field_defaults") and "_make" in vars(kind):
            return ["namedtuple", kind.__qualname__, self.encode([kind.__annotations__, kind._field_defaults])]
        node, around = source.class_definition(kind)
        names = source.global_names(compile(ast.Module([node], []), kind.__qualname__, "exec"))
        constants = {name: value for name, value in sorted(vars(kind).items()) if name[0] != "_" and is_plain(value)}
        return [
            "class",
            source.tree(node),
            self.reached(node, source.used(names, around)),
            {name: self.encode(value) for name, value in constants.items()},
        ]

    def instance(self, value: Any) -> Encoded:
        """An object, by what it is made of."""
        kind = type(value)
        if source.is_engine(kind.__module__):
            if isinstance(getattr(value, "specification", None), Specification):
                return ["dataset", value.name, self.encode(dict(value.specification.content))]
            return [kind.__qualname__, {name: self.at(name, found) for name, found in fields_of(value)}]
        if isinstance(value, enum.Enum):
            return ["member", self.encode(kind), value.name]
        parts = [self.encode(base(value)) for base in (str, int, float, *collections) if isinstance(value, base)]
        if source.is_project(kind.__module__):
            state = {name: self.at(name, each) for name, each in sorted(state_of(value).items())}
            return ["instance", self.encode(kind), parts, state]
        return [f"{kind.__module__}.{kind.__qualname__}", *(parts or [self.installed(value)])]

    def installed(self, value: Any) -> Encoded:
        """An object of a type that the project has not made, if it can be identified."""
        if type(value).__module__ == "pyspark.sql.types":
            return value.json()
        if type(value).__module__ == "typing":
            return repr(value)
        if callable(value) and isinstance(getattr(value, "__name__", None), str):
            return f"{getattr(value, '__module__', '')}.{value.__name__}"
        return self.unknown(value)

    def unknown(self, value: object) -> Encoded:
        """A DeclarationError that says which value cannot be followed, unless the declaration has a version."""
        if self.has_version:
            return ["unknown"]
        where = " → ".join(self.path[1:]) or "a part of it"
        raise DeclarationError(
            f"{self.dataset}: its code uses a value whose changes could not be noticed: {where}, of type "
            f"{type(value).__module__}.{type(value).__qualname__}; use constants, functions and classes of the project "
            "instead, or declare version=1 and change that number whenever the value changes"
        )


def named(value: Any) -> str:
    """What the engine and installed packages offer, by its name, whatever module of the engine it is in."""
    module = "sluice" if source.is_engine(value.__module__ or "") else value.__module__
    return f"{module}.{value.__qualname__}"


def encode_method(encoder: Encoder, value: types.MethodType) -> Encoded:
    return ["method", encoder.encode(value.__func__), encoder.encode(value.__self__)]


def encode_partial(encoder: Encoder, value: "functools.partial[Any]") -> Encoded:
    return ["partial", *map(encoder.encode, (value.func, value.args, value.keywords))]


def encode_builtin(encoder: Encoder, value: types.BuiltinFunctionType) -> Encoded:
    return ["builtin", value.__qualname__, encoder.encode(value.__self__)]


def encode_reducible(encoder: Encoder, value: Any) -> Encoded:
    return [type(value).__name__, encoder.encode(tuple(value.__reduce__()[1]))]


encoders: list[tuple[Any, Callable[[Encoder, Any], Encoded]]] = [
    (types.FunctionType, Encoder.function),
    (types.ModuleType, Encoder.module),
    (type, Encoder.kind),
    (types.MethodType, encode_method),
    (types.BuiltinFunctionType | types.MethodWrapperType, encode_builtin),
    (types.MethodDescriptorType | types.WrapperDescriptorType, lambda _, value: ["builtin", value.__qualname__]),
    (functools.partial, encode_partial),
    (functools._lru_cache_wrapper, lambda encoder, value: ["cached", encoder.encode(value.__wrapped__)]),
    (staticmethod | classmethod, lambda encoder, value: [type(value).__name__, encoder.encode(value.__func__)]),
    (property, lambda encoder, value: ["property", *map(encoder.encode, (value.fget, value.fset))]),
    (types.MappingProxyType, lambda encoder, value: encoder.collection(dict(value))),
    (re.Pattern, lambda encoder, value: ["pattern", encoder.encode(value.pattern), value.flags]),
    (logging.Logger, lambda encoder, value: ["logger", value.name]),
    ((operator.itemgetter, operator.attrgetter, operator.methodcaller, pathlib.PurePath), encode_reducible),
]


def fields_of(value: Any) -> Iterator[tuple[str, object]]:
    """The fields of an engine's dataclass that are not at their default: one that is new changes no fingerprint.

    Those for people alone do not count.
    """
    for each in sorted(dataclasses.fields(value), key=lambda each: each.name):
        if each.metadata.get("is_documentation"):
            continue
        found = getattr(value, each.name)
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        if type(found) is not type(default) or found != default:
            yield each.name, found


def state_of(value: object) -> dict[str, Any]:
    """The attributes of an object, those in slots too."""
    slots = {name for kind in type(value).__mro__ for name in as_names(vars(kind).get("__slots__", ()))}
    named = {name: getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)}
    return {**named, **getattr(value, "__dict__", {})}


def as_names(slots: str | Collection[str]) -> Collection[str]:
    return (slots,) if isinstance(slots, str) else slots


def is_plain(value: object) -> bool:
    """Whether a value is a constant, or a collection of constants."""
    if isinstance(value, tuple | list | set | frozenset):
        return all(is_plain(each) for each in value)
    if isinstance(value, dict):
        return all(is_plain(each) for pair in value.items() for each in pair)
    return value is None or type(value) in (bool, int, float, str, bytes, decimal.Decimal)
