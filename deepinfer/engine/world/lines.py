"""The driver's ends of the lines to its ranks: what they say comes into one queue, and so does that one has fallen silent."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from deepinfer.engine.world.messages import (
    Beat,
    Hello,
    MalformedMessage,
    Message,
    Notice,
    ToDriver,
    packed,
    read_at_driver,
)
from deepinfer.engine.world.silence import Silence
from deepinfer.parallel.channel import Channel, ChannelClosed, Listener, MessageTooLarge, StrangerRefused

LOOK_S = 0.2  # between looks whether somebody calls


@dataclass(frozen=True, kw_only=True)
class LineEnded:
    """A rank's line has ended. `silent_s`: because it gave no sign of life for so long; `deaf_s`: because it took no message
    within so long."""

    silent_s: float | None = None
    deaf_s: float | None = None


@dataclass(kw_only=True)
class RankAtLine:
    """What is known of a rank that has called."""

    hello: Hello
    channel: Channel
    silence: Silence
    doing: str = "starting"


@dataclass(kw_only=True)
class Lines:
    """Lines to the ranks of a world of `size`. Strangers who call are turned away."""

    listener: Listener
    size: int
    heartbeat_s: float
    silence_s: float
    ranks: dict[int, RankAtLine] = field(default_factory=dict)
    news: SimpleQueue[tuple[int, ToDriver | LineEnded]] = field(default_factory=SimpleQueue)
    _over: threading.Event = field(default_factory=threading.Event)
    _num_ended: int = 0  # lines
    _entering: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """Take calls from now on, until all ranks have called: nobody listens any more then."""
        for run in (self._accept, self._beat):
            threading.Thread(target=run, name=f"driver-lines{run.__name__}", daemon=True).start()

    def send(self, rank: int, message: Message) -> None:
        """Raises MessageTooLarge. That a rank is gone, its news say."""
        with suppress(ChannelClosed):
            if rank in self.ranks:
                self.ranks[rank].channel.send(packed(message))

    def next(self, wait_s: float) -> tuple[int, ToDriver | LineEnded] | None:
        """The next news, None where there are none within `wait_s`."""
        try:
            return self.news.get(timeout=wait_s) if wait_s > 0 else self.news.get_nowait()
        except Empty:
            return None

    def close(self) -> None:
        """All lines end, and nobody listens any more."""
        self._over.set()
        self.listener.close()
        for rank in list(self.ranks.values()):
            rank.channel.close()

    def _accept(self) -> None:
        while len(self.ranks) < self.size and not self._over.is_set():
            try:
                caller = self.listener.wait(LOOK_S)
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(caller,), name="driver-line", daemon=True).start()
        self.listener.close()

    def _serve(self, caller: socket.socket) -> None:
        """One who calls, until the line ends."""
        try:
            channel = self.listener.greet(caller, patience_s=self.silence_s)
            hello = read_at_driver(channel.receive())
        except (StrangerRefused, MalformedMessage, MessageTooLarge, ChannelClosed):
            caller.close()
            return
        silence = Silence(self.silence_s, self.heartbeat_s)
        with self._entering:
            if not isinstance(hello, Hello) or not 0 <= hello.rank < self.size or hello.rank in self.ranks:
                channel.close()
                return
            self.ranks[hello.rank] = rank = RankAtLine(hello=hello, channel=channel, silence=silence)
        self._receive(hello.rank, rank)

    def _receive(self, number: int, rank: RankAtLine) -> None:
        while True:
            try:
                message = read_at_driver(rank.channel.receive())
            except (MalformedMessage, MessageTooLarge) as error:
                self.news.put((number, Notice(texts=[f"a message of rank {number} was not taken: {error}"])))
                continue
            except ChannelClosed:
                self.news.put((number, LineEnded(deaf_s=self.silence_s if rank.channel.is_stuck else None)))
                with self._entering:
                    self._num_ended += 1
                return
            rank.silence.heard()
            if isinstance(message, Beat):
                rank.doing = message.doing
            else:
                self.news.put((number, message))

    def _beat(self) -> None:
        """Look at all before anything is sent, and wait for nobody: one rank that reads nothing must not keep signs of life
        from the others."""
        told: set[int] = set()
        while not self._over.wait(self.heartbeat_s) and self._num_ended < self.size:
            for number, rank in list(self.ranks.items()):
                silent_s = rank.silence.of_now()
                if silent_s is not None and number not in told:
                    told.add(number)
                    self.news.put((number, LineEnded(silent_s=silent_s)))
                    rank.channel.close()  # whoever sends there stops waiting
            for number, rank in list(self.ranks.items()):
                if number not in told:
                    with suppress(ChannelClosed):
                        rank.channel.send_if_free(packed(Beat()))
