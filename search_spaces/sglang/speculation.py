"""What speculative decoding fills in and forces (arg_groups/speculative_hook.py of 0.5.23)."""

from __future__ import annotations

from typing import Any

from search_spaces.layout import Layout
from search_spaces.sglang.target import Target
from search_spaces.sglang.version_facts import VersionFacts

ALGORITHMS = frozenset({"DFLASH", "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NGRAM", "STANDALONE", "UNO"})
"""speculative/spec_info.py:31; NEXTN is another name of EAGLE."""

EAGLE_FAMILY = frozenset({"EAGLE", "EAGLE3", "STANDALONE"})
MIXED_CHUNK_ALGORITHMS = frozenset({"EAGLE", "EAGLE3", "DFLASH", "DSPARK"})
"""Algorithms that may mix prefill chunks with decode (speculative/spec_info.py:147)."""

_WITHOUT_MODEL = frozenset({None, "NGRAM"})
"""Algorithms that draft without a model."""

_MAX_RUNNING_REQUESTS = 48
_NGRAM_BREADTH = 10
"""Default of `--speculative-ngram-max-bfs-breadth`, which takes the place of the top-k."""
_NGRAM_DRAFT_TOKENS = 12
_DFLASH_DRAFT_TOKENS = 16
_DSPARK_DRAFT_TOKENS = 8


def algorithm_of(layout: Layout) -> str | None:
    """The algorithm by its own name: in capitals, NEXTN as EAGLE (speculative_hook.py:81)."""
    if layout.speculative_algorithm is None:
        return None
    name = layout.speculative_algorithm.upper()
    return "EAGLE" if name == "NEXTN" else name


def needs_draft(layout: Layout) -> bool:
    """Whether a second model is loaded beside the one that is served, whichever that is."""
    return algorithm_of(layout) not in _WITHOUT_MODEL


def drafts_by_itself(layout: Layout) -> bool:
    """Whether the target's own checkpoint is to hold the draft: none is named (configs/model_config.py:956)."""
    return algorithm_of(layout) in EAGLE_FAMILY and layout.speculative_draft_model_path is None


def speculation(layout: Layout, target: Target, facts: VersionFacts) -> dict[str, Any]:
    """Steps, top-k, draft tokens and the request limit where speculation is asked for."""
    name = algorithm_of(layout)
    if name is None:
        return {}
    changes: dict[str, Any] = {"speculative_algorithm": name}
    if layout.max_running_requests is None and name != "UNO":
        changes["max_running_requests"] = _MAX_RUNNING_REQUESTS
    if layout.enable_mixed_chunk and not (facts.mixes_drafts and name in MIXED_CHUNK_ALGORITHMS):
        changes["enable_mixed_chunk"] = False
    if (target.is_cpu and name in {*EAGLE_FAMILY, "NGRAM"}) or not _overlaps(name, layout, facts):
        changes["disable_overlap_schedule"] = True
    steps, topk, tokens = _drafts(name, layout, target, facts)
    return changes | {
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": tokens,
    }


def _overlaps(name: str, layout: Layout, facts: VersionFacts) -> bool:
    """Whether the release's speculation runs beside the scheduler (arg_groups/speculative_hook.py:240 of 0.5.13)."""
    if facts.overlaps_drafts:
        return True
    return name in EAGLE_FAMILY and facts.overlaps_eagle and (layout.speculative_eagle_topk or 1) <= 1


def _drafts(
    name: str, layout: Layout, target: Target, facts: VersionFacts
) -> tuple[int | None, int | None, int | None]:
    """Steps, top-k and draft tokens."""
    steps = layout.speculative_num_steps
    topk = layout.speculative_eagle_topk
    tokens = layout.speculative_num_draft_tokens
    if name in EAGLE_FAMILY:
        if steps is None and topk is None and tokens is None:
            is_llama = target.model.architecture == "LlamaForCausalLM" and name != "STANDALONE"
            return (5, 4, 8) if is_llama else (3, 1, 4)
        return steps, topk, steps + 1 if topk == 1 and steps is not None else tokens
    match name:
        case "NGRAM":
            tokens = _NGRAM_DRAFT_TOKENS if tokens is None else tokens
            if steps is None and facts.overlaps_drafts:
                steps = tokens // _NGRAM_BREADTH
            return steps, _NGRAM_BREADTH, tokens
        case "DFLASH":
            return 1, 1, _DFLASH_DRAFT_TOKENS if tokens is None else tokens
        case "DSPARK":
            return 1, 1, _DSPARK_DRAFT_TOKENS if tokens is None else tokens
        case _:
            return steps, topk, tokens
