"""What a failure under load was to the server itself: it dies of it, says why, or goes on as if nothing had been."""

from __future__ import annotations

import math
import time

import requests

from tuner.diagnosis import holds_an_exception, silent
from tuner.outcome import Crashed, Hung, Outcome
from tuner.server_control import ask, is_ready
from tuner.watched import POLL_S, Asking, Watched, lost

DYING_S = 90.0
"""A dying server answers no more long before it is gone: SGLang waits up to 60 s for its processes."""
SETTLED_S = 5.0
"""How much longer a server is watched that has printed its exception, for the exit code; it need not end at once."""
HEALTHY_S = 2.0
EXIT_UNKNOWN = -1


def explained(ended: Crashed | Hung, watched: Watched) -> Outcome:
    """The server's own account of `ended`, which was seen from outside; `ended` itself where it has none.

    Waits for the end of a server that does not answer any more, `DYING_S` at most; not of one that generates again.
    """
    is_open = isinstance(ended, Crashed) and ended.exit_code is None
    code = _exit_code(watched, DYING_S if is_open else 0.0)
    if code is not None:
        return watched.diagnosis(code, ended.stage)
    if watched.server.lost():
        return lost(watched.server, ended.stage)
    text = watched.log.tail()
    if holds_an_exception(text):
        return watched.diagnosis(EXIT_UNKNOWN, ended.stage)
    if isinstance(ended, Hung):
        return silent(stage=ended.stage, silent_s=ended.silent_s, log=text)
    return watched.or_full_disk(ended)


def _exit_code(watched: Watched, limit_s: float) -> int | None:
    """None where it goes on, after the limit or with answers as a healthy server gives them, and where it is lost."""
    server = watched.server
    give_up_s = time.monotonic() + limit_s
    healthy_since_s = math.inf
    with Asking(lambda: is_healthy(server.base_url)) as asking:
        while (code := server.exit_code()) is None:
            watched.look()
            now_s = time.monotonic()
            answer = asking.answer()
            if answer is not None:
                healthy_since_s = min(healthy_since_s, now_s) if answer else math.inf
            if server.lost() or now_s > give_up_s or now_s - healthy_since_s >= HEALTHY_S:
                return None
            if holds_an_exception(watched.log.tail()):
                give_up_s = min(give_up_s, now_s + SETTLED_S)
            time.sleep(POLL_S)
    return code


def is_healthy(base_url: str) -> bool:
    """Whether it generates a token (entrypoints/http_server.py:723 under sglang/srt/ of 0.5.23); without that question,
    whether it says that it is ready.
    """
    try:
        status = ask("GET", f"{base_url}/health_generate").status_code
    except requests.RequestException:
        return False
    return is_ready(base_url) if status == 404 else status == 200
