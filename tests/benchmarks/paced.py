"""The paced server as a process, and what it says that it really sent."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SERVER = Path(__file__).with_name("paced_server.py")


@dataclass(slots=True)
class Truth:
    """Filled when the server has ended. latest_s: how late its ticks were at most. Means over all requests."""

    url: str
    num_requests: int = 0
    output_tok_per_s: float = 0.0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    latest_s: float = 0.0


@contextlib.contextmanager
def paced_server(core: int | None = None) -> Iterator[Truth]:
    words = [sys.executable, str(SERVER), *([str(core)] if core is not None else [])]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    truth = Truth(f"http://127.0.0.1:{int(server.stdout.readline())}")
    try:
        yield truth
    finally:
        rest, _ = server.communicate(input="")
        (truth.latest_s, _), *sent = ([float(word) for word in line.split()] for line in rest.splitlines())
        truth.num_requests = len(sent)
        if sent:
            start, first, last, tokens = np.array(sent).T
            truth.output_tok_per_s = float(tokens.sum() / (last.max() - start.min()))
            truth.ttft_s = float((first - start).mean())
            truth.tpot_s = float(((last - first) / (tokens - 1)).mean())
