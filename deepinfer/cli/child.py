"""A run of a sweep: the command line in a process that does not outlive the one that started it.

The starter holds the other end of stdin and never writes. However it ends, by kill -9 too, that end closes, and the run
is told to terminate. It has nobody left to answer.
"""

import os
import signal
import sys
import threading
import time

GRACE_S = 10.0  # from being told until a run that does not end is ended


def watch_starter() -> None:
    """Take stdin for the watch; the run itself finds an empty one."""
    held = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_wait, args=(held,), daemon=True).start()


def _wait(held: int) -> None:
    while os.read(held, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    watch_starter()
    from deepinfer.cli.main import main  # after the watch: imports take most of a short run

    sys.exit(main())
