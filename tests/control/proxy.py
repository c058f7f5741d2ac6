"""Forwards the connection between a rank and rank 0, and records what the rank sends."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """Listens at `port` of loopback and passes everything to rank 0's; `recorded`: the bytes that went there, of one connection."""

    def __init__(self, to: int) -> None:
        self._to, self._kept = to, bytearray()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []

    @property
    def recorded(self) -> bytes:
        return bytes(self._kept)

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cut()
        self._listening.close()

    def cut(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(OSError):
            rank, _ = self._listening.accept()
            hub = socket.create_connection(("127.0.0.1", self._to))
            self._open += [rank, hub]
            threading.Thread(target=self._pass, args=(hub, rank, False), daemon=True).start()
            self._pass(rank, hub, True)

    def _pass(self, source: socket.socket, target: socket.socket, keep: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                if keep:
                    self._kept += piece
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
