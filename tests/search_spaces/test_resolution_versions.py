"""What SGLang 0.5.9 to 0.5.23 make of a launch, as each release answered (tests/golden/resolved_by_release.json)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.catalogue import load_gpu, load_model
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.resolution import resolution_of
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import release_0_5

ANSWERS = json.loads((Path(__file__).parents[1] / "golden" / "resolved_by_release.json").read_text())["cases"]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: f"{answer['model']} {answer['argv']} {answer['gpu']}")
def test_a_release_resolves_as_it_did(answer):
    target = Target(model=load_model(answer["model"]), gpu=load_gpu(answer["gpu"]))
    for patch in answer["releases"]:
        version = release_0_5(patch)
        asked = from_argv(answer["argv"].split(), version).layout
        effective = resolution_of(asked, target, version).effective
        ours = {name: getattr(effective, name) for name in answer["resolved"]}
        assert ours == pytest.approx(answer["resolved"], abs=1e-6), version
