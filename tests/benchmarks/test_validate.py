"""How long the bundled sweeps take, printed; `pytest -s` shows it."""

from __future__ import annotations

import sys
import time

from tuner.validate_job import ValidateRequest, validated


def test_the_bundled_sweeps_are_compared_in_a_moment():
    start = time.perf_counter()
    found = validated(ValidateRequest())
    seconds = time.perf_counter() - start
    points = found.overall.n
    sys.stdout.write(
        f"\n{points} measured points read and compared in {seconds:.2f} s, {points / seconds:.0f} a second\n"
    )
    assert points > 600
