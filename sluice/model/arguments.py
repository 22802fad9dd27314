"""Arguments of a declaration: a value that is not of the annotated type is refused by the name of its argument."""

import builtins
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from sluice.errors import DeclarationError, SluiceError

Given = ParamSpec("Given")
Made = TypeVar("Made")
layers = ("bronze", "silver", "gold")
several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
shown_characters_max = 60
plain_names = {str: "text", bool: "True or False", int: "a whole number", float: "a number", NoneType: "None"}


def typed(function: Callable[Given, Made]) -> Callable[Given, Made]:
    """Makes a function refuse arguments of other types than it states."""

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Made:
        with as_stated(function, args, kwargs):
            return function(*args, **kwargs)

    return called


@contextmanager
def as_stated(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """A DeclarationError, at the end of a call or in the place of Python's error, for an argument of another type.

    What the function says itself of its arguments comes first.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        wrong = wrong_argument(function, args, kwargs)
        if wrong is None:
            raise
        raise DeclarationError(wrong) from error
    wrong = wrong_argument(function, args, kwargs)
    if wrong is not None:
        raise DeclarationError(wrong)


def wrong_argument(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """What is wrong with the first argument that is not of its type; None where all are, or Python says more."""
    signature, kinds = stated(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return None
    for each, value in given.items():
        kind = kinds.get(each, Any)
        if signature.parameters[each].kind not in several and not is_of(value, kind):
            said = repr(value)
            shown = said if len(said) <= shown_characters_max else f"of the type {type(value).__name__}"
            return f"{called_for(function, given.get('name'))}: {each} is {shown}; it must be {described(kind)}"
    return None


def called_for(function: Callable[..., Any], name: object) -> str:
    """The table that is declared, or else the function that is called."""
    layer = function.__module__.split(".")[1]
    return f"{layer}.{name}" if layer in layers and isinstance(name, str) else function.__name__


@cache
def stated(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """The parameters of a function, and their types; what is imported for annotations alone is anything."""

    class Names(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            return function.__globals__.get(name, getattr(builtins, name, Any))

    return inspect.signature(function), get_type_hints(function, localns=Names())


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as far as this knows such types; text is no list, and True no number."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(is_of(value, each) for each in inner)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if isinstance(origin, type):
        return holds(value, origin, inner)
    if isinstance(value, bool):
        return kind in (bool, object) or not isinstance(kind, type)
    return not isinstance(kind, type) or isinstance(value, (kind, int) if kind is float else kind)


def holds(value: Any, origin: type, inner: tuple[Any, ...]) -> bool:
    """Whether a value is a collection of what it should have, or a function."""
    if issubclass(origin, Mapping):
        of_key, of_value = inner
        return isinstance(value, Mapping) and all(is_of(k, of_key) and is_of(v, of_value) for k, v in value.items())
    if issubclass(origin, Collection):
        is_list = isinstance(value, origin) and not isinstance(value, str | bytes | Mapping)
        return is_list and all(is_of(each, inner[0]) for each in value)
    return callable(value) or origin is not cast(object, Callable)


def described(kind: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(described, inner)))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping of {described(inner[0])} to {described(inner[1])}"
    if isinstance(origin, type) and issubclass(origin, Collection):
        return f"a list of {described(inner[0])}"
    if origin is not None:
        return "a function"
    return plain_names.get(kind) or f"a {getattr(kind, '__name__', 'value')}"
