"""ZeroMQ's own: a ping-pong over PAIR sockets of pyzmq, without copies but the one into the receiver's memory."""

from __future__ import annotations

from tools.benchmarks.stacks.loop import Call, Opened, Place, main


def ready(place: Place) -> Call:
    """There and back, between sockets of its own."""
    import numpy as np
    import zmq

    socket = zmq.Context.instance().socket(zmq.PAIR)
    address = f"tcp://{place.addresses[0]}"
    (socket.connect if place.rank else socket.bind)(address)
    ours, theirs = np.ones(place.count, np.float32), np.zeros(place.count, np.float32)

    def send() -> None:
        socket.send(ours, copy=False)

    def receive() -> None:
        theirs[:] = np.frombuffer(socket.recv(copy=False), np.float32)

    def there_and_back() -> None:
        for step in (receive, send) if place.rank else (send, receive):
            step()

    return there_and_back


def open_stack(place: Place) -> Opened:
    """Nothing but the sockets; the last message is sent before the context ends."""
    import zmq

    return ready(place), zmq.Context.instance().destroy


if __name__ == "__main__":
    main(open_stack)
