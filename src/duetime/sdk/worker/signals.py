"""SIGTERM and SIGINT while a worker runs: the first asks it to stop, the second ends the process.

Only for the process that runs the worker.  A handler may fork, as
`multiprocessing` does; a signal to such a child is neither passed on to the
worker nor ignored, it ends the child as it would any program.
"""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

logger = logging.getLogger("duetime.worker")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: While the signals are handled: the handlers that they had before.
_before: dict[int, Any] = {}
#: For each forking thread: the signals that it blocked before.
_forking = threading.local()


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Handle the signals for the running loop. Outside the main thread they cannot be handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    count = 0

    def on_signal(number: int) -> None:
        nonlocal count
        count += 1
        if count > 1:
            os._exit(128 + number)
        logger.info("stopping; once more to stop at once")
        stop()

    _before.update((number, signal.getsignal(number)) for number in _SIGNALS)
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        _before.clear()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


# Signals are blocked during a fork: a signal before the child has its own handlers would reach the worker.


def _hold_signals() -> None:
    if _before:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_signals_pass() -> None:
    mask, _forking.mask = getattr(_forking, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _give_signals_back() -> None:
    """Reset the signals in a forked child: there the loop's handlers only write into a socket that the parent reads."""
    if _before:
        signal.set_wakeup_fd(-1)
        for number, handler in _before.items():
            # None: a handler that was set outside of Python, before it started.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _before.clear()
    _let_signals_pass()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_pass, after_in_child=_give_signals_back)
