"""TCP streams: what arrives is compared and counted, and every way to fail ends within the patience given."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from collbench.addresses import free_port, listen_at
from collbench.measuring.references import PATTERN
from collbench.plugins.channels import tcp_streams
from collbench.plugins.channels.tcp_streams import receive, send

KEY = b"0123456789abcdef"
SENT = np.resize(PATTERN, 70_000).tobytes()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen_at("127.0.0.1") as made:
        yield made


def in_a_thread(task: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=task, daemon=True)
    thread.start()
    return thread


@contextmanager
def poured(listener: socket.socket, *pieces: bytes) -> Iterator[None]:
    """A sender of its own making: the key and these pieces; it stays until the end."""
    with socket.create_connection(listener.getsockname()) as made:
        made.sendall(KEY + b"".join(pieces))
        yield


@pytest.mark.system
@pytest.mark.parametrize("count", [1, 3])
def test_the_rate_of_all_streams_together(count: int, listener: socket.socket) -> None:
    sender = in_a_thread(lambda: send(listener.getsockname(), KEY, count, (1.0, 5)))
    arrived = receive(listener, KEY, count, 1.0, 5)
    sender.join(5)
    assert not sender.is_alive() and arrived.wrong is None
    assert len(arrived.rates) == 24 and np.all(arrived.rates >= 0)
    assert 1e6 < np.mean(arrived.rates) < 1e12  # a busy machine may leave windows empty


def test_rates_are_those_of_equal_windows_behind_the_warm_up_and_too_little_is_no_rate() -> None:
    """Two streams of 1000 and 500 bytes per second, of which the second begins later and the first stops half-way."""
    one = tcp_streams._Arrivals([0.0, 5.0, 10.0], [0, 5000, 5000])
    two = tcp_streams._Arrivals([2.0, 12.0], [0, 5000])
    rates = tcp_streams._rates([one, two])
    assert len(rates) == 24
    assert rates[0] == pytest.approx(1500) and rates[-1] == pytest.approx(500)
    for times in ([], [1.0], [1.0, 1.0]):
        assert len(tcp_streams._rates([tcp_streams._Arrivals(times, [0] * len(times))])) == 0


def test_a_stream_that_stalls_carries_nothing(listener: socket.socket) -> None:
    with poured(listener, SENT[:100]):
        arrived = receive(listener, KEY, 1, 0.1, 5)
    assert arrived.wrong is None and np.median(arrived.rates) == 0


def test_a_byte_that_is_changed_or_lost_is_named(listener: socket.socket) -> None:
    sent = bytearray(SENT)
    sent[66_000] ^= 1
    with poured(listener, sent):
        assert receive(listener, KEY, 1, 0.1, 5).wrong == "byte 66000 of a TCP stream is not the one that was sent"
    with poured(listener, SENT[:1000], SENT[1001:5000]):
        assert receive(listener, KEY, 1, 0.1, 5).wrong == "byte 1000 of a TCP stream is not the one that was sent"


def test_senders_that_are_absent_leave_early_or_lack_the_key_are_reported(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sender = in_a_thread(lambda: send(listener.getsockname(), KEY, 1, (0.1, 5)))
        assert receive(listener, KEY, 1, 0.1, 5).wrong is None
    sender.join(5)
    with pytest.raises(TimeoutError):
        receive(listener, KEY, 1, 0.1, 0.05)
    with poured(listener, SENT[:100]):
        pass
    with pytest.raises(ConnectionError, match="closed the stream"):
        receive(listener, KEY, 1, 5, 5)
    with listen_at("127.0.0.1") as gone:
        place = gone.getsockname()
    with pytest.raises(ConnectionRefusedError):
        send(place, KEY, 1, (0.1, 1))


def test_a_stream_leaves_from_the_given_address_and_port(listener: socket.socket) -> None:
    source = ("127.0.0.2", free_port("127.0.0.2"))
    sender = in_a_thread(lambda: send(listener.getsockname(), KEY, 1, (0.05, 1.0), source=source))
    connection, actual = listener.accept()
    connection.close()
    sender.join(5)
    assert actual == source


def test_a_stream_leaves_from_the_given_port_again_and_again() -> None:
    """A second stream with the same addresses and ports follows the first one at once."""
    source = ("127.0.0.2", free_port("127.0.0.2"))
    target = ("127.0.0.1", tcp_streams.LISTENING_PORT)
    for _ in range(2):
        with listen_at(target[0], port=target[1]) as listener:
            sender = in_a_thread(lambda: send(target, KEY, 1, (0.1, 2.0), source=source))
            assert receive(listener, KEY, 1, 0.1, 2.0).rates.size
            sender.join(5)
