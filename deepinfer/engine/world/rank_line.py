"""A rank's end of the line to its driver: messages wait in an inbox, signs of life go out beside whatever the rank does.

A rank must not outlive its driver, however that ended, nor its order to end: its main thread may sit in a collective that
nothing interrupts, so the threads here end the process where it has not ended by itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import cast

from deepinfer.engine.world.children import GRACE_S
from deepinfer.engine.world.messages import (
    Beat,
    Close,
    MalformedMessage,
    Message,
    Notice,
    ToRank,
    packed,
    read_at_rank,
)
from deepinfer.engine.world.silence import Silence
from deepinfer.parallel.channel import Channel, ChannelClosed, MessageTooLarge


class DriverLost(RuntimeError):
    """Nobody is left to work for."""


class RankLine:
    """`name` and `driver` say who is at the two ends, for people; `doing` may be replaced by whatever says what the rank is at.
    `end(code)` ends the process; None in the driver's own."""

    def __init__(
        self,
        channel: Channel,
        *,
        heartbeat_s: float,
        silence_s: float,
        name: str = "this rank",
        driver: str = "its driver",
        end: Callable[[int], object] | None = os._exit,
        grace_s: float = GRACE_S,
    ) -> None:
        self._channel, self._end, self._grace_s, self._heartbeat_s = channel, end, grace_s, heartbeat_s
        self._name, self._driver = name, driver
        self._inbox: SimpleQueue[ToRank | None] = SimpleQueue()  # None: the line has ended
        self._silence = Silence(silence_s, heartbeat_s)
        self._over = threading.Event()
        self.doing: Callable[[], str] = lambda: "starting"
        for run in (self._receive, self._beat):
            threading.Thread(target=run, name=f"rank-line{run.__name__}", daemon=True).start()

    def send(self, message: Message) -> None:
        """Raises MessageTooLarge; DriverLost where nobody takes it."""
        try:
            self._channel.send(packed(message))
        except ChannelClosed as error:
            raise DriverLost(str(error)) from error

    def next(self, wait_s: float | None) -> ToRank | None:
        """The next message, None where there is none within `wait_s` (None: for ever). Raises DriverLost."""
        try:
            message = self._inbox.get(timeout=wait_s) if wait_s is None or wait_s > 0 else self._inbox.get_nowait()
        except Empty:
            return None
        if message is None:
            self._inbox.put(None)
            raise DriverLost("the line to the driver has ended")
        return message

    def close(self) -> None:
        """No sign of life any more, and no end of the process by this line."""
        self._over.set()
        self._channel.close()

    def _receive(self) -> None:
        while True:
            try:
                message = read_at_rank(self._channel.receive())
            except (MalformedMessage, MessageTooLarge) as error:
                self._tell(f"a message of the driver was not taken: {error}")
                continue
            except ChannelClosed:
                self._inbox.put(None)
                return self._end_soon()
            self._silence.heard()
            if isinstance(message, Close):
                threading.Thread(target=self._end_soon, name="rank-line-end", daemon=True).start()
            if not isinstance(message, Beat):
                self._inbox.put(cast(ToRank, message))

    def _beat(self) -> None:
        while not self._over.wait(self._heartbeat_s):
            silent_s = self._silence.of_now()
            if silent_s is not None:
                why = "it was stopped, or its host or network is gone"
                told = f"{self._name} ends: {self._driver} was silent for {silent_s:.2g} s; {why}"
                print(f"deepinfer: {told}", file=sys.stderr)
                self._channel.close()
                return
            try:
                self._channel.send_if_free(packed(Beat(doing=self.doing())))
            except ChannelClosed:
                self._channel.close()
                return

    def _tell(self, text: str) -> None:
        with suppress(ChannelClosed):  # the next `receive` finds out
            self._channel.send(packed(Notice(texts=[text])))

    def _end_soon(self) -> None:
        if self._end is None or self._over.wait(self._grace_s):
            return
        self._end(1)
