"""Lines between processes: frames of any size in order, strangers turned away, and ends that are told."""

from __future__ import annotations

import socket
import threading

import pytest

from deepinfer.parallel import channel
from deepinfer.parallel.channel import ChannelClosed, Listener, MessageTooLarge, StrangerRefused, call

HERE = "127.0.0.1"


def pair(secret: bytes = b"secret", theirs: bytes | None = None, patience_s: float = 5.0):
    """Both ends of a line; what came instead of the listener's end where it refused."""
    listener, found = Listener(HERE, secret), []

    def accept() -> None:
        try:
            found.append(listener.greet(listener.wait(5.0), patience_s=patience_s))
        except StrangerRefused as error:
            found.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        ours = call(HERE, listener.port, secret if theirs is None else theirs, 5.0, patience_s=patience_s)
    except StrangerRefused as error:
        ours = error
    thread.join()
    listener.close()
    return ours, found[0]


def test_messages_of_any_size_come_in_order_and_both_ways():
    ours, theirs = pair()
    sent = [b"", b"a", bytes(range(256)) * 3000, b"z" * 17]
    thread = threading.Thread(target=lambda: [ours.send(message) for message in sent])
    thread.start()
    assert [theirs.receive() for _ in sent] == sent
    thread.join()
    theirs.send(b"back")
    assert ours.receive() == b"back"


def test_a_message_that_is_too_large_is_refused_and_the_line_goes_on(monkeypatch):
    ours, theirs = pair()
    monkeypatch.setattr(channel, "MOST_BYTES", 10)
    with pytest.raises(MessageTooLarge, match="a message of 11 bytes; between ranks one has at most 10"):
        ours.send(b"x" * 11)
    ours._connection.sendall(channel.HEAD.pack(channel.MARK, 3_000_000) + b"y" * 3_000_000)  # one who does not look
    ours.send(b"next")
    with pytest.raises(MessageTooLarge, match="3,000,000"):
        theirs.receive()
    assert theirs.receive() == b"next"


def test_who_does_not_know_the_secret_hears_and_says_nothing():
    ours, theirs = pair(theirs=b"another")
    assert isinstance(theirs, StrangerRefused)
    assert "does not know the secret" in str(theirs)
    assert isinstance(ours, StrangerRefused)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" + b"x" * 60])
def test_a_stranger_that_finds_the_port_is_turned_away_and_the_next_one_comes_in(said):
    listener = Listener(HERE, b"secret")
    stranger = socket.create_connection((HERE, listener.port))
    stranger.sendall(said)
    stranger.shutdown(socket.SHUT_WR)
    with pytest.raises(StrangerRefused):
        listener.greet(listener.wait(5.0))
    thread = threading.Thread(target=lambda: call(HERE, listener.port, b"secret", 5.0).send(b"hello"))
    thread.start()
    assert listener.greet(listener.wait(5.0)).receive() == b"hello"
    thread.join()
    stranger.close()
    listener.close()
    with pytest.raises(OSError):
        socket.create_connection((HERE, listener.port), timeout=1.0)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_one_who_listens_at_all_addresses_is_found_at_each(address):
    if address == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    listener, found = Listener("", b"secret"), []
    thread = threading.Thread(target=lambda: found.append(call(address, listener.port, b"secret", 5.0)))
    thread.start()
    listener.greet(listener.wait(5.0)).send(b"hello")
    thread.join()
    assert found[0].receive() == b"hello"
    listener.close()


def test_frames_of_another_version_end_the_line():
    ours, theirs = pair()
    ours._connection.sendall(channel.HEAD.pack(b"DI99", 1) + b"x")
    with pytest.raises(ChannelClosed, match="another version"):
        theirs.receive()


@pytest.mark.parametrize("half", [b"", channel.HEAD.pack(channel.MARK, 100) + b"only so much"])
def test_the_end_of_the_other_side_is_told(half):
    ours, theirs = pair()
    ours._connection.sendall(half)
    ours.close()
    ours.close()
    with pytest.raises(ChannelClosed, match="the line has ended"):
        theirs.receive()


def test_one_who_takes_nothing_is_given_up():
    ours, theirs = pair(patience_s=0.2)
    with pytest.raises(ChannelClosed, match="it takes no message"):
        for _ in range(1000):
            ours.send(bytes(1_000_000))
    theirs.close()
