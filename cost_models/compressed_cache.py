"""DeepSeek-V4's KV pool: the last tokens as they are, and one row for several tokens of all before them.

Sizes are those of `DSV4PoolConfigurator` (model_executor/pool_configurator.py under `sglang/srt/` of 0.5.23), run on a
CPU with the model's config. Tokens that wait to be compressed are kept in FP32 besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from search_spaces.parts import Block, KvCache
from search_spaces.sglang.versions import NEWEST, EngineVersion, release_0_5

ROW_EXTRA_BYTES = 64 + 8
"""Of a row: the rotary part is kept in BF16, and each 64 values have a scale."""
_SLIDING_RATIO = 0.1  # arg_groups/model_overrides/deepseek_v4.py:48
_PAGE = 256  # arg_groups/model_overrides/deepseek_v4.py:51
_PAGE_BYTES = 576
"""What pages are padded to a multiple of (kernels/ops/attention/dsv4/kv_layout.py:103)."""
_WINDOW = 128
_WAITING_BYTES = 4  # SGLANG_DSV4_COMPRESS_STATE_DTYPE (environ.py:1832): fp32
_WAITING_ROWS = {4: (8, 16), 128: (128, 256)}
"""Tokens that wait to be compressed by a ratio, without and with drafts (mem_cache/deepseek_v4_memory_pool.py:60)."""
_EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL (environ.py:730)
_PREFIXES_PER_REQUEST = 4
_CHUNKS_IN_FLIGHT = 2

_WAITING_BY_REQUEST_SINCE = release_0_5(15)
"""Before, what waits to be compressed by 128 was counted for each token of the sliding pool."""
_SLIDING_BY_REQUEST_SINCE = release_0_5(21)
"""Before, the sliding pool held a tenth of all tokens; since then what the request limit can need. Pages are padded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedPool:
    """What the pool of one attention-DP rank is sized for.

    requests: its request limit. chunk_tokens: of one prefill chunk; 0: chunks are switched off, and the sliding pool
    holds a tenth of all tokens again. draft_tokens: that one step verifies; 0 without speculative decoding.
    """

    requests: int = 256
    chunk_tokens: int = 8192
    draft_tokens: int = 0
    keeps_prefixes: bool = True
    version: EngineVersion = NEWEST

    @property
    def is_sized_by_requests(self) -> bool:
        return self.version >= _SLIDING_BY_REQUEST_SINCE and self.chunk_tokens > 0

    @property
    def sliding_tokens(self) -> int:
        """Of a pool that is sized by requests (compute_swa_request_cap): windows of all requests with what is evicted
        late, chunks in flight, and the ends of prefixes that may be used again.
        """
        of_request = _WINDOW + _EVICTION_INTERVAL * max(self.draft_tokens, 1) + 2 * _PAGE
        tokens = of_request * self.requests + _CHUNKS_IN_FLIGHT * self.chunk_tokens + _PAGE
        if self.keeps_prefixes:
            tokens += _PREFIXES_PER_REQUEST * self.requests * (_WINDOW + _PAGE)
        return math.ceil(tokens / _PAGE) * _PAGE

    def bytes_per_token(self, cache: KvCache) -> float:
        """Of one layer: one row for `compress_ratio` tokens with its indexer's keys, and the sliding pool's share."""
        ratio = cache.compress_ratio
        size = 0.0 if self.is_sized_by_requests else _SLIDING_RATIO * self._sliding_bytes(cache)
        if ratio:
            size += self._row_bytes(cache, _PAGE // ratio) / ratio
        if cache.index_values:
            size += (cache.index_values + 4) / ratio
        return size

    def fixed_bytes(self, blocks: Iterable[Block]) -> int:
        """What is set aside whatever the tokens: rings of what waits to be compressed by 128, and the sliding pool."""
        size = 0.0
        for block in blocks:
            if block.kv is None or not block.kv.is_compressed:
                continue
            if self.is_sized_by_requests:
                size += self.sliding_tokens * self._sliding_bytes(block.kv)
            if block.kv.compress_ratio == _WINDOW and self.version >= _WAITING_BY_REQUEST_SINCE:
                rows = self._waiting_rows(_WINDOW)
                rings = math.ceil(((self.requests + 1) * rows + rows + 1) / _WINDOW) * _WINDOW
                size += rings * 2 * block.kv.values * _WAITING_BYTES
        return round(size)

    def _sliding_bytes(self, cache: KvCache) -> float:
        """One token of the sliding pool in one layer, with what waits to be compressed beside it."""
        size = self._row_bytes(cache, _PAGE)
        page = _PAGE if self.version >= _SLIDING_BY_REQUEST_SINCE else _WINDOW
        if cache.compress_ratio == 4:
            size += self._waiting_rows(4) / page * 4 * (cache.values + cache.index_values) * _WAITING_BYTES
        if cache.compress_ratio == _WINDOW and self.version < _WAITING_BY_REQUEST_SINCE:
            size += self._waiting_rows(_WINDOW) / page * 2 * cache.values * _WAITING_BYTES
        return size

    def _row_bytes(self, cache: KvCache, page: int) -> float:
        """One row, with its share of what pads a page of so many."""
        row = float(cache.values + ROW_EXTRA_BYTES)
        if self.version < _SLIDING_BY_REQUEST_SINCE:
            return row
        return math.ceil(page * row / _PAGE_BYTES) * _PAGE_BYTES / page

    def _waiting_rows(self, ratio: int) -> int:
        return _WAITING_ROWS[ratio][self.draft_tokens > 0]
