"""Group commit: records that arrive while one append is under way are appended together by the next."""

import asyncio
from collections.abc import Callable, Sequence

from sluice.log import Record

Offsets = dict[int, int]


class Group:
    """Appends to one topic for many callers, each of whom waits until its own records are durable."""

    def __init__(self, append: Callable[[Sequence[Record]], Offsets]) -> None:
        self.append_now = append
        self.waiting: list[tuple[Sequence[Record], asyncio.Future[Offsets]]] = []
        self.under_way: asyncio.Task[None] | None = None

    async def append(self, records: Sequence[Record]) -> Offsets:
        """Returns the next offset of each partition when these records are durable; raises what their append raised."""
        appended: asyncio.Future[Offsets] = asyncio.get_running_loop().create_future()
        self.waiting.append((records, appended))
        if self.under_way is None:
            self.under_way = asyncio.create_task(self.append_waiting())
        return await appended

    async def append_waiting(self) -> None:
        while self.waiting:
            group, self.waiting = self.waiting, []
            together = [record for records, _ in group for record in records]
            outcome: Offsets | Exception
            try:
                outcome = await asyncio.to_thread(self.append_now, together)
            except Exception as error:  # noqa: BLE001 - each waiting request gets the error, whatever it is
                outcome = error
            for _, appended in group:
                settle(appended, outcome)
        self.under_way = None


def settle(appended: "asyncio.Future[Offsets]", outcome: Offsets | Exception) -> None:
    if appended.done():  # The request has gone.
        return
    if isinstance(outcome, Exception):
        appended.set_exception(outcome)
    else:
        appended.set_result(outcome)
