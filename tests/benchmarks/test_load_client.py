"""How much of a server's true pace the load client reports: ratios within one run, against the server's own clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from tuner.load import Load, Traffic, wall_clock
from tuner.measurement import Rung

SERVER = Path(__file__).with_name("paced_server.py")


@pytest.mark.parametrize("concurrency", [1, 64])
def test_the_client_reports_the_pace_that_the_server_kept(concurrency: int) -> None:
    load = Load(
        concurrency=concurrency,
        num_requests=2 * concurrency,
        input_tokens=64,
        output_tokens=64,
        vocab_size=1000,
        seed=0,
    )
    server = subprocess.Popen([sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    try:
        traffic = Traffic(f"http://127.0.0.1:{port}", clock=wall_clock, silence_limit_s=60.0)
        rung = Rung.of(concurrency, uvloop.run(traffic.run(load)))
    finally:
        rest, _ = server.communicate(input="")
    sent = [[float(word) for word in line.split()] for line in rest.splitlines()]
    assert len(sent) == load.num_requests
    duration_s = max(s[2] for s in sent) - min(s[0] for s in sent)
    true_rate = sum(s[3] for s in sent) / duration_s
    true_tpot_s = sum((s[2] - s[1]) / (s[3] - 1) for s in sent) / len(sent)
    assert rung.output_tok_per_s / true_rate == pytest.approx(1.0, abs=0.05)
    assert rung.tpot_s.mean / true_tpot_s == pytest.approx(1.0, abs=0.05)
