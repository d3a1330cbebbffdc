"""The bus of a Redis Cluster through proxies: a server can be cut off from the others, but not from its callers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from tests.contract.redis_cluster import BUS_ABOVE

ANNOUNCED_ABOVE = 2 * BUS_ABOVE
_SENDER = slice(40, 80)
"""Where every packet of the bus names the server that it is from."""


class Bus:
    """``cut``: ports of servers that nothing reaches and that reach nobody.  ``names``: port by server id."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.cut: set[int] = set()
        self.names: dict[str, int] = {}
        self._sockets: list[socket.socket] = []
        for port in ports:
            listener = socket.create_server(("127.0.0.1", port + ANNOUNCED_ABOVE))
            self._sockets.append(listener)
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    def close(self) -> None:
        for one in list(self._sockets):
            with_shutdown(one)

    def _accept(self, listener: socket.socket, port: int) -> None:
        try:
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near, port), daemon=True).start()
        except OSError:
            pass  # closed

    def _carry(self, near: socket.socket, port: int) -> None:
        self._sockets.append(near)
        head = b""
        try:
            while len(head) < _SENDER.stop:
                more = near.recv(65536)
                if not more:
                    return
                head += more
            sender = head[_SENDER].decode()
            with socket.create_connection(("127.0.0.1", port + BUS_ABOVE)) as far:
                self._sockets.append(far)
                far.sendall(head)
                threading.Thread(target=self._pump, args=(far, near, sender, port), daemon=True).start()
                self._pump(near, far, sender, port)
        except OSError:
            pass
        finally:
            with_shutdown(near)

    def _pump(self, source: socket.socket, target: socket.socket, sender: str, port: int) -> None:
        try:
            while data := source.recv(65536):
                if not self.cut & {port, self.names.get(sender, 0)}:
                    target.sendall(data)
        except OSError:
            pass
        finally:
            with_shutdown(target)


def with_shutdown(one: socket.socket) -> None:
    """Also who waits in ``recv`` or ``accept`` is woken."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
