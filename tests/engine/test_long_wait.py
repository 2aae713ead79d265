"""A word where a wait takes long, and none where it does not."""

import io
import time

from deepinfer.engine.long_wait import explained


def test_a_long_wait_is_explained_once() -> None:
    stream = io.StringIO()
    with explained("compiling", stream=stream, quiet_s=0.01):
        time.sleep(0.3)
    assert stream.getvalue() == "deepinfer: compiling\n"


def test_a_short_wait_and_one_that_nobody_wonders_about_are_not() -> None:
    stream = io.StringIO()
    with explained("compiling", stream=stream, quiet_s=30):
        pass
    with explained("compiling", on=False, stream=stream, quiet_s=0.0):
        time.sleep(0.05)
    assert stream.getvalue() == ""
