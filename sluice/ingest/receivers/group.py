"""Group commit: records that arrive while one append is under way are appended together by the next."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sluice.errors import LogRefused

Item = TypeVar("Item")
Done = TypeVar("Done")


class Group(Generic[Item, Done]):
    """Appends to one topic for many callers, each of whom waits until its own records are durable.

    Where the log refuses a record, the records of each caller are appended by themselves: only one of them sent it.
    """

    def __init__(self, append: Callable[[Sequence[Item]], Done]) -> None:
        self.append_now = append
        self.waiting: list[tuple[Sequence[Item], asyncio.Future[Done]]] = []
        self.under_way: asyncio.Task[None] | None = None

    async def append(self, records: Sequence[Item]) -> Done:
        """Returns what their append returned, when these records are durable; raises what it raised."""
        appended: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self.waiting.append((records, appended))
        if self.under_way is None:
            self.under_way = asyncio.create_task(self.append_waiting())
        return await appended

    async def append_waiting(self) -> None:
        while self.waiting:
            group, self.waiting = self.waiting, []
            together = [record for records, _ in group for record in records]
            outcome = await self.appended(together)
            for records, appended in group:
                is_of_others = isinstance(outcome, LogRefused) and len(group) > 1
                settle(appended, await self.appended(records) if is_of_others else outcome)
        self.under_way = None

    async def appended(self, records: Sequence[Item]) -> Done | Exception:
        try:
            return await asyncio.to_thread(self.append_now, records)
        except Exception as error:  # noqa: BLE001 - each waiting request gets the error, whatever it is
            return error


def settle(appended: "asyncio.Future[Done]", outcome: Done | Exception) -> None:
    if appended.done():  # The request has gone.
        return
    if isinstance(outcome, Exception):
        appended.set_exception(outcome)
    else:
        appended.set_result(outcome)
