"""Rules on the state of linear-attention layers: how prefix caching keeps it (arg_groups/mamba_hook.py of 0.5.23)."""

from __future__ import annotations

from search_spaces.sglang.rule import Launch, Rule, says
from search_spaces.verdict import Stage

_HYBRIDS = frozenset(
    {
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "NemotronHForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""The architectures read here with a cached state (arg_groups/overrides.py:385); all of them can buffer it."""

_TRACK_INTERVAL = 256
"""Default of `--mamba-track-interval`."""


def _caches_state(launch: Launch) -> bool:
    return launch.model.architecture in _HYBRIDS and not launch.declared.disable_radix_cache


def _buffers_state(launch: Launch) -> bool:
    """Whether a second buffer lets batches overlap (overrides.py:483); Nemotron-H takes it for its drafts."""
    wants_pages = (launch.declared.page_size or 1) > 1
    drafts = launch.model.architecture == "NemotronHForCausalLM" and launch.asked.speculative_algorithm is not None
    return not launch.asked.disable_overlap_schedule or wants_pages or (drafts and launch.target.is_sm100)


def _keeps_no_buffer(launch: Launch) -> bool:
    return _caches_state(launch) and not _buffers_state(launch)


STATE = (
    Rule(
        id="state.drafts",
        stage=Stage.RESOLVE,
        source="arg_groups/mamba_hook.py:131",
        architectures=_HYBRIDS,
        broken=lambda launch: (
            _caches_state(launch)
            and _buffers_state(launch)
            and (launch.asked.speculative_num_draft_tokens or 0) > _TRACK_INTERVAL
        ),
        message=lambda launch: (
            f"the state is kept every {_TRACK_INTERVAL} tokens, so that speculative_num_draft_tokens cannot be "
            f"{launch.asked.speculative_num_draft_tokens}"
        ),
        exception="AssertionError",
    ),
    Rule(
        id="state.pages",
        stage=Stage.RESOLVE,
        source="arg_groups/mamba_hook.py:133",
        architectures=_HYBRIDS,
        broken=lambda launch: (
            _caches_state(launch)
            and _buffers_state(launch)
            and (launch.declared.page_size or 0) > 0
            and _TRACK_INTERVAL % (launch.declared.page_size or 1) != 0
        ),
        message=lambda launch: (
            f"page_size must divide the {_TRACK_INTERVAL} tokens after which the state is kept, but is "
            f"{launch.declared.page_size}"
        ),
        exception="AssertionError",
    ),
    Rule(
        id="state.unbuffered_trtllm_mha",
        stage=Stage.RESOLVE,
        source="arg_groups/mamba_hook.py:161",
        architectures=_HYBRIDS,
        broken=lambda launch: _keeps_no_buffer(launch) and launch.declared.attention_backend == "trtllm_mha",
        message=says("trtllm_mha cannot keep the state without a buffer (disable_overlap_schedule)"),
        exception="AssertionError",
        engine_text=says("no_buffer do not support trtllm_mha attention backend."),
    ),
)
