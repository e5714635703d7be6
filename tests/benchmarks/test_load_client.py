"""How much of a server's true pace the load client reports: ratios within one run, against the server's own clock."""

from __future__ import annotations

import pytest
import uvloop

from tests.benchmarks.paced import paced_server
from tuner.load import Load, Traffic, wall_clock
from tuner.measurement import Rung


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
    with paced_server() as truth:
        traffic = Traffic(truth.url, clock=wall_clock, silence_limit_s=60.0)
        rung = Rung.of(concurrency, uvloop.run(traffic.run(load)))
    assert truth.num_requests == load.num_requests
    assert rung.run_output_tok_per_s == pytest.approx(truth.output_tok_per_s, rel=0.05)
    assert rung.tpot_s.mean == pytest.approx(truth.tpot_s, rel=0.05)
