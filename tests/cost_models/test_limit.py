"""The physical limit: a hand-made case, laws, and that nothing measured exceeds it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.attention_core import core_reads
from cost_models.limit import limits
from search_spaces.catalogue import load_model, parse_cluster
from search_spaces.layout import Layout
from search_spaces.workload import Workload
from tuner.validate_rows import bundled_rows

MODELS = ["kimi-k2.6", "deepseek-v3", "qwen3-235b-a22b-fp8", "gpt-oss-120b", "qwen3.5-397b-a17b", "glm-5-fp8"]


def test_one_request_reads_the_active_weights_once():
    """Qwen3-235B-A22B in bf16 activates 22 B parameters, of which 0.6 B are the embedding that is looked up: about
    43 GB for each token, on 8 x 4.8 TB/s about 900 tokens/s.
    """
    found = limits(load_model("qwen3-235b-a22b"), parse_cluster("8xh200"), Workload())[0]
    assert found.output_tok_per_s == pytest.approx(8 * 4.8e12 / 43e9, rel=0.08)
    assert found.bound_by == "memory bandwidth"


def test_many_short_requests_are_bound_by_multiplication():
    """22 B active parameters are 44 Gflop a token; with as many input as output tokens the box does twice that."""
    workload = Workload(input_tokens=32, output_tokens=32, concurrencies=(1, 8192))
    found = limits(load_model("qwen3-235b-a22b"), parse_cluster("8xh200"), workload)[-1]
    assert found.bound_by == "compute"
    assert found.output_tok_per_s == pytest.approx(8 * 989e12 / (2 * 44e9), rel=0.08)


def test_nothing_that_was_measured_exceeds_the_limit():
    rows = bundled_rows()
    assert len(rows) > 600
    for row in rows:
        workload = Workload(
            input_tokens=row.input_tokens,
            output_tokens=row.output_tokens,
            concurrencies=tuple(sorted({1, row.concurrency})),
        )
        most = limits(row.model, row.cluster, workload)[-1].output_tok_per_s
        assert (row.output_tok_per_s or row.concurrency / row.tpot_s) < most, row


@given(
    model=st.sampled_from(MODELS),
    lengths=st.tuples(st.integers(1, 32768), st.integers(2, 8192)),
    factor=st.floats(1, 8),
)
def test_a_better_box_has_a_higher_limit(model, lengths, factor):
    workload = Workload(input_tokens=lengths[0], output_tokens=lengths[1])
    served, cluster = load_model(model), parse_cluster("8xb200")
    gpu = cluster.gpu
    fast = replace(cluster, gpu=replace(gpu, memory_bytes_per_s=factor * gpu.memory_bytes_per_s))
    more = parse_cluster("2x8xb200")
    usual = limits(served, cluster, workload)
    for better in (limits(served, fast, workload), limits(served, more, workload)):
        assert all(a.output_tok_per_s <= b.output_tok_per_s * (1 + 1e-9) for a, b in zip(usual, better, strict=True))
    # More requests share the weights that are read.
    assert all(a.output_tok_per_s <= b.output_tok_per_s * (1 + 1e-9) for a, b in pairwise(usual))


@pytest.mark.parametrize(("box", "reads_less"), [("4xb200", True), ("4xh200", False)])
def test_a_card_that_can_keep_its_cache_in_four_bits_may_read_less_than_in_eight(box, reads_less):
    """30,000 tokens in: reading the cache is most of a step of 512 requests."""
    model, cluster = load_model("qwen3-235b-a22b-fp8"), parse_cluster(box)
    load = Workload(input_tokens=30000, output_tokens=2000, concurrencies=(1, 512))
    in_eight_bits = core_reads(model, cluster.gpu, Layout(kv_cache_dtype="fp8_e4m3"), 1, 31000).size_bytes
    cache_alone = cluster.num_gpus * cluster.gpu.memory_bytes_per_s / in_eight_bits
    assert (limits(model, cluster, load)[-1].output_tok_per_s > cache_alone) == reads_less
