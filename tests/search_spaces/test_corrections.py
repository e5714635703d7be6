from __future__ import annotations

import shlex

import pytest

from search_spaces.sglang.corrections import corrected
from search_spaces.sglang.versions import NEWEST


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--tp-sizee 8", "--tp-size 8"),
        ("--tp 8 --eps-size 4", "--tp 8 --ep-size 4"),
        ("--tp 8 --ep_size=4", "--tp 8 --ep-size=4"),
        ("--pp 2 --tp 4", "--pp-size 2 --tp 4"),
        ("--tp 8 --moe-a2a-backend deeepep", "--tp 8 --moe-a2a-backend deepep"),
        ("--tp 8 --moe-a2a-backend=deep-ep", "--tp 8 --moe-a2a-backend=deepep"),
        ("--gpu-memory-utilization 0.9", "--mem-fraction-static 0.9"),
    ],
)
def test_a_mistyped_flag_becomes_the_nearest_known_one(typed, meant):
    assert corrected(shlex.split(typed), NEWEST) == tuple(shlex.split(meant))


@pytest.mark.parametrize("words", ["--tp 8", "--zyxwvut 3", "--tp eight"])
def test_what_is_right_or_has_nothing_near_it_is_left(words):
    assert corrected(shlex.split(words), NEWEST) is None
