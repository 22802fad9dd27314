"""Fewer calls to the JVM: py4j makes one for each class, list element, column's name, and object that is let go of.

Each takes a tenth of a millisecond of both processes, and a small refresh makes a thousand of them.
"""

import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

from py4j.java_gateway import JavaClass, JavaMember, JavaObject, JVMView
from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID
from pyspark.errors import utils
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

# So many objects of the JVM may be there that nothing in Python stands for any more.
left_max = 250
# `List.of` takes up to ten elements by themselves.
elements_max = 10
names_max = 10_000
of_numpy = (NumpyScalarConverter, NumpyArrayConverter)
# What the gateway itself is known by.
not_objects = (ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID)


def frugal(gateway: Any) -> Any:
    """The gateway, which makes one call where py4j makes many."""
    client = gateway._gateway_client
    gateway.jvm = Classes(gateway.jvm._gateway_client, jvm_name=gateway.jvm._jvm_name, id=gateway.jvm._id)
    known = client.converters or []
    client.converters = [Listed(client), *[OfNumpy(each) if isinstance(each, of_numpy) else each for each in known]]
    client.garbage_collect_object = Left(gateway)
    return gateway


class Classes(JVMView):  # type: ignore[misc]
    """The classes of a JVM, by name, each asked for once: the JVM looks for a name in every jar."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if type(found) is JavaClass:
            found = Functions(found._fqn, found._gateway_client)
            setattr(self, name, found)
        return found


class Functions(JavaClass):  # type: ignore[misc]
    """The static functions of a class, by name."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if self._fqn == "org.apache.spark.sql.functions" and name == "col":
            found = ColumnOfName(found)
            setattr(self, name, found)
        # A Scala object has one instance, by this name.
        elif type(found) is JavaMember or name == "MODULE$":
            setattr(self, name, found)
        return found


class ColumnOfName(JavaMember):  # type: ignore[misc]
    """`functions.col`: the column of each name is made once, but where Spark notes the line that it is made at."""

    def __init__(self, found: JavaMember) -> None:
        super().__init__(found.name, found.container, found.target_id, found.gateway_client)
        self.known = lru_cache(names_max)(super().__call__)

    def __call__(self, name: str) -> Any:
        return super().__call__(name) if cast(Any, utils)._enable_debugging_cache else self.known(name)


class Listed:
    """Lists of texts and objects of the JVM as `java.util.List`."""

    def __init__(self, client: Any) -> None:
        self.of = JavaClass("java.util.List", client).of
        self.empty = JavaClass("java.util.ArrayList", client)

    def can_convert(self, value: object) -> bool:
        return (
            isinstance(value, list | tuple)
            and len(value) > 1
            and all(type(each) in (str, JavaObject) for each in value)
        )

    def convert(self, value: Sequence[object], client: Any) -> Any:  # noqa: ARG002 - py4j gives it
        if len(value) <= elements_max:
            return self.of(*value)
        found = self.empty()
        for start in range(0, len(value), elements_max):
            found.addAll(self.of(*value[start : start + elements_max]))
        return found


class OfNumpy:
    """Values of numpy, where it is there. PySpark imports pandas to find out, a fifth of a second in each process."""

    def __init__(self, converter: Any) -> None:
        self.converter = converter
        self.convert = converter.convert

    def can_convert(self, value: object) -> bool:
        numpy = sys.modules.get("numpy")
        if numpy is None or not isinstance(value, (numpy.generic, numpy.ndarray)):
            return False
        return bool(self.converter.can_convert(value))


class Left:
    """Objects of the JVM that nothing in Python stands for any more, which the JVM forgets many at a time.

    py4j calls this from wherever Python's garbage collector runs, so it does no more than to note what is left, and
    asks py4j's own thread for the rest.
    """

    def __init__(self, gateway: Any) -> None:
        self.client, self.ids = gateway._gateway_client, deque[str]()
        self.known = gateway.java_gateway_server.getGateway().getBindings().keySet()
        self.list_of = JavaClass("org.apache.hadoop.util.StringUtils", self.client).getStringCollection

    def __call__(self, name: str, enqueue: bool = True) -> None:
        if not enqueue:
            # The JVM may have ended.
            with suppress(Exception):
                self.forget()
            return
        if name in not_objects:
            return
        self.ids.append(name)
        if len(self.ids) % left_max == 0:
            self.client.finalizer_deque.appendleft((self.client, name))

    def forget(self) -> None:
        """Lets the JVM forget all that is left."""
        names = []
        # Two threads may do this at once.
        with suppress(IndexError):
            while True:
                names.append(self.ids.popleft())
        if names:
            self.known.removeAll(self.list_of(",".join(names)))
