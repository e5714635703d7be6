"""Which layouts are worth a trial, and how far the memory model may decide that."""

from __future__ import annotations

import pytest

from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.errors import CannotRunError
from search_spaces.sglang.versions import NEWEST
from search_spaces.space import enumerate_space
from search_spaces.workload import Workload
from tuner.engine import Engine
from tuner.objective import Objective
from tuner.request import Request
from tuner.sifting import Sifted, sift


def sifted(*extra_args: str, model: str = "qwen3-235b-a22b", cluster: str = "4xh100") -> Sifted:
    served, box = load_model(model), parse_cluster(cluster)
    request = Request(
        objective=Objective.PEAK_THROUGHPUT,
        model=served,
        model_path="m",
        cluster=box,
        workload=Workload(),
        engine=Engine(name="sglang", version=NEWEST, program=("sglang",), extra_args=extra_args),
        storage_url="",
        tracking_uri="",
        artifact_root="",
        work_dir="",
        trials=4,
    )
    return sift(request, enumerate_space(served, box, NEWEST))


@pytest.mark.parametrize("extra_args", [(), ("--cpu-offload-gb", "1"), ("--trust-remote-code",)])
def test_nothing_is_tried_where_the_weights_are_too_large(extra_args: tuple[str, ...]) -> None:
    """30.4 GiB of each quarter of Qwen3-235B in bf16 are too much for an H100."""
    with pytest.raises(CannotRunError, match="does not fit"):
        sifted(*extra_args)


@pytest.mark.parametrize("extra_args", [("--cpu-offload-gb", "40"), ("--quantization", "w8a8_int8")])
def test_what_frees_memory_that_is_counted_leaves_the_trial_to_decide(extra_args: tuple[str, ...]) -> None:
    found = sifted(*extra_args)
    assert found.fitting
    assert all(each.chance == 0.5 for each in found.fitting.values())


def test_layouts_that_fit_are_not_less_likely_for_it() -> None:
    plain, freed = (sifted(*words, cluster="8xh200") for words in ((), ("--cpu-offload-gb", "40")))
    assert plain.fitting.keys() <= freed.fitting.keys()
    assert all(freed.fitting[layout].chance == each.chance for layout, each in plain.fitting.items())
