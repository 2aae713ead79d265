"""A line between two processes that carries messages of bytes, and both ends of which know one secret.

A frame is a mark, a length and so many bytes. Before the first one, each end proves that it knows the secret without saying it
(HMAC of a number that the other end drew), so that a stranger who finds the port can say nothing. What is inside of a message
is not looked at here; nothing is ever unpickled.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

HERE = "127.0.0.1"  # where ranks of one machine meet: nobody else's packets come there
MARK = b"DI01"  # of this form of frames: another version's is refused by its first bytes
HEAD = struct.Struct("!4sI")
MOST_BYTES = 256 * 2**20  # of a message
NONCE_BYTES = 32
GREETING_S = 10.0  # for a stranger to prove that it is none
_PART_BYTES = 2**20  # that are read at once


class ChannelClosed(ConnectionError):
    """The other end is gone: it closed the line, ended, was killed, or takes nothing any more."""


class MessageTooLarge(ValueError):
    """A message that this line does not carry. It stays usable."""


class StrangerRefused(ConnectionError):
    """Whoever is at the other end does not know the secret, or speaks another version's language."""


class Channel:
    """One end of a line. One thread receives; any thread sends."""

    def __init__(self, connection: socket.socket, *, patience_s: float = 10.0) -> None:
        """`patience_s`: how long the other end may take to take a whole message before a `send` calls it gone."""
        self._connection, self._sending, self._patience_s = connection, threading.Lock(), patience_s
        self._owed = b""  # the rest of a frame that began to go out
        self.is_stuck = False  # closed because the other end took nothing
        with suppress(OSError):  # not every family of sockets has it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: bytes) -> None:
        """Raises MessageTooLarge before anything is sent, ChannelClosed where the other end is gone."""
        check_size(len(message))
        with self._sending:
            try:
                self._send_all(self._owed + _frame(message))
                self._owed = b""
            except OSError as error:  # half a frame may be out, so that nothing can follow it
                self.close()
                raise ChannelClosed(f"it takes no message: {error.strerror or error}") from error

    def send_if_free(self, message: bytes) -> bool:
        """Send without waiting. False where another thread is sending, or the other end takes nothing just now: the message
        is dropped. Raises as `send`."""
        check_size(len(message))
        if not self._sending.acquire(blocking=False):
            return False
        try:
            owed, data = len(self._owed), self._owed + _frame(message)
            sent = self._connection.send(data, socket.MSG_DONTWAIT)
            self._owed = data[sent:] if sent > owed else data[sent:owed]
            return sent > owed
        except BlockingIOError:
            return False
        except OSError as error:
            self.close()
            raise ChannelClosed(f"it takes no message: {error.strerror or error}") from error
        finally:
            self._sending.release()

    def receive(self) -> bytes:
        """The next message. Raises MessageTooLarge for one that was skipped, ChannelClosed at the end of the line."""
        mark, length = HEAD.unpack(self._read(HEAD.size))
        if mark != MARK:
            self.close()
            raise ChannelClosed(f"it sent a frame that begins with {mark!r} and not with {MARK!r}: another version's")
        if length > MOST_BYTES:
            for start in range(0, length, _PART_BYTES):
                self._read(min(_PART_BYTES, length - start))
            check_size(length)
        return self._read(length)

    def close(self) -> None:
        """Both directions end; a `receive` or `send` that waits in another thread returns. Closing twice is fine."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send_all(self, data: bytes) -> None:
        """Within the patience for all of it, however many calls it takes: one who takes a byte now and then is gone, too."""
        deadline_s, rest = time.monotonic() + self._patience_s, memoryview(data)
        try:
            while rest:
                seconds, fraction = divmod(max(1e-3, deadline_s - time.monotonic()), 1)  # 0 would be for ever
                limit = struct.pack("ll", int(seconds), int(fraction * 1e6))
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
                rest = rest[self._connection.send(rest) :]
                if rest and time.monotonic() >= deadline_s:
                    raise BlockingIOError
        except BlockingIOError:
            self.is_stuck = True
            raise TimeoutError(f"not all of {len(data):,} bytes within {self._patience_s:g} s") from None

    def _read(self, number: int) -> bytes:
        try:
            found = exactly(self._connection.recv, number)
        except OSError as error:
            raise ChannelClosed(error.strerror or str(error)) from error
        if len(found) < number:
            raise ChannelClosed("the line has ended")
        return found


def exactly(read: Callable[[int], bytes], number: int) -> bytes:
    """So many bytes of something whose `read(most)` gives what is there; fewer where it ends before."""
    found = bytearray()
    while len(found) < number and (part := read(min(_PART_BYTES, number - len(found)))):
        found += part
    return bytes(found)


def _frame(message: bytes) -> bytes:
    return HEAD.pack(MARK, len(message)) + message


def check_size(length: int) -> None:
    """Raises MessageTooLarge."""
    if length > MOST_BYTES:
        raise MessageTooLarge(f"a message of {length:,} bytes; between ranks one has at most {MOST_BYTES:,}")


class Listener:
    """Where ranks call: a port of this machine that closes with it."""

    def __init__(self, address: str, secret: bytes) -> None:
        """`address` is this machine's own to listen at; "" are all of them."""
        both = not address and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
        where = (address, 0)
        self._socket = socket.create_server(where, family=family, backlog=1024, dualstack_ipv6=both)
        self._secret = secret
        self.port: int = self._socket.getsockname()[1]

    def wait(self, timeout_s: float) -> socket.socket:
        """Somebody who calls. Raises TimeoutError where nobody does, OSError where this is closed."""
        self._socket.settimeout(timeout_s)
        return self._socket.accept()[0]

    def greet(self, caller: socket.socket, *, patience_s: float = 10.0) -> Channel:
        """The line to a caller who knows the secret. Raises StrangerRefused for one who does not, or says nothing."""
        return _greeted(caller, self._secret, b"called", b"caller", patience_s)

    def close(self) -> None:
        self._socket.close()


def call(address: str, port: int, secret: bytes, timeout_s: float, *, patience_s: float = 10.0) -> Channel:
    """A line to a Listener. Raises OSError where there is none, StrangerRefused where it is not ours."""
    connection = socket.create_connection((address, port), timeout=timeout_s)
    return _greeted(connection, secret, b"caller", b"called", patience_s)


def _greeted(connection: socket.socket, secret: bytes, mine: bytes, theirs: bytes, patience_s: float) -> Channel:
    """A channel once both ends have proved themselves. `mine` and `theirs` keep one end's proof from serving the other."""
    connection.settimeout(GREETING_S)
    try:
        nonce = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(MARK + nonce)
        other = _all_of(connection, len(MARK) + NONCE_BYTES)
        if other[: len(MARK)] != MARK:
            raise StrangerRefused(f"a caller began with {other[: len(MARK)]!r} and not with {MARK!r}")
        connection.sendall(_proof(secret, mine, other[len(MARK) :]))
        if not hmac.compare_digest(_all_of(connection, 32), _proof(secret, theirs, nonce)):
            raise StrangerRefused("the other end does not know the secret of this world")
    except OSError as error:
        connection.close()
        if isinstance(error, StrangerRefused):
            raise
        raise StrangerRefused(f"the other end did not greet: {error.strerror or error}") from error
    connection.settimeout(None)
    return Channel(connection, patience_s=patience_s)


def _proof(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + nonce, "sha256")


def _all_of(connection: socket.socket, number: int) -> bytes:
    found = exactly(connection.recv, number)
    if len(found) < number:
        raise StrangerRefused("the other end closed the line instead of greeting")
    return found
