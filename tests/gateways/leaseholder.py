"""An application that decides a hot key itself, until it is killed: NODE, and a file of two counters.

The counters: how many checks were allowed, and the largest lease that was held.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
from pathlib import Path

from apportion import AsyncClient, AsyncTokenLeases

COUNTERS = struct.Struct("<qq")


async def main(node: str, shared: mmap.mmap) -> None:
    client = AsyncClient(node, timeout_s=5, on_no_answer="deny")
    leases = AsyncTokenLeases(client)
    allowed = largest = 0
    while True:
        allowed += (await leases.check("everybody", "leased")).allowed
        largest = max([largest, *(key.tokens for key in leases._table.holding())])
        COUNTERS.pack_into(shared, 0, allowed, largest)
        if allowed % 20 == 0:
            await asyncio.sleep(0.001)


if __name__ == "__main__":
    with Path(sys.argv[2]).open("r+b") as opened, mmap.mmap(opened.fileno(), COUNTERS.size) as counters:
        asyncio.run(main(sys.argv[1], counters))
