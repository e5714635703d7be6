"""DeepSeek-V4's pool, against the engine's own configurator, run on a CPU with DeepSeek-V4-Pro's config."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.compressed_cache import CompressedPool
from cost_models.kv_cache import kv_bytes_per_token
from search_spaces.catalogue import load_gpu, load_model
from search_spaces.sglang.versions import release_0_5

PRO = load_model("deepseek-v4-pro")
GIB = 2**30


def bytes_per_token(pool):
    return kv_bytes_per_token(PRO, load_gpu("h200"), 8, PRO.blocks, compressed=pool)


def tokens(pool, size):
    return int((size - pool.fixed_bytes(PRO.blocks)) // bytes_per_token(pool)) // 256 * 256


def test_the_sliding_pool_is_sized_for_all_requests():
    """0.5.23: bytes_per_full_token, swa_cap_tokens, _get_swa_fixed_bytes and _get_c128_state_fixed_bytes."""
    pool = CompressedPool(requests=256, chunk_tokens=8192)
    assert bytes_per_token(pool) == 5586.75
    assert pool.sliding_tokens == 606464
    assert pool.fixed_bytes(PRO.blocks) == 27463722240 + 4209508352


@pytest.mark.parametrize(("gib", "held"), [(30, 96256), (60, 5862144)])
def test_a_pool_holds_what_the_engine_computes(gib, held):
    assert tokens(CompressedPool(requests=256, chunk_tokens=8192), gib * GIB) == held


@pytest.mark.parametrize(("gib", "held"), [(18.51, 1548544), (30, 2768128), (60, 5952768)])
def test_without_chunks_the_sliding_pool_holds_a_tenth_of_all_tokens(gib, held):
    pool = CompressedPool(requests=256, chunk_tokens=0)
    assert bytes_per_token(pool) == 10115.25
    assert tokens(pool, int(gib * GIB)) == held


def test_older_releases_count_what_waits_for_each_token():
    """0.5.14, pool_configurator.py:365: rows of 584 bytes, a tenth of them sliding, and FP32 rings of a window each."""
    pool = CompressedPool(requests=256, version=release_0_5(14))
    sliding = 61 * 584 + 30 * 8 / 128 * 4 * (512 + 128) * 4 + 31 * 2 * 512 * 4
    expected = 0.1 * sliding + 30 * (584 / 4 + 132 / 4) + 31 * 584 / 128
    assert bytes_per_token(pool) == pytest.approx(expected)
    assert pool.fixed_bytes(PRO.blocks) == 0


def test_other_models_set_nothing_aside():
    assert CompressedPool().fixed_bytes(load_model("deepseek-v3").blocks) == 0


@given(fewer=st.integers(1, 4096), more=st.integers(1, 4096), patch=st.integers(12, 23))
def test_more_requests_never_need_less(fewer, more, patch):
    sizes = [
        CompressedPool(requests=requests, version=release_0_5(patch)).fixed_bytes(PRO.blocks)
        for requests in sorted((fewer, more))
    ]
    assert sizes == sorted(sizes)
