"""A verdict as a JSON object, with the same keys for `check --json` and for each line of `check --batch`."""

from __future__ import annotations

import math
from typing import Any

from search_spaces.errors import UnsupportedError
from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.rule_ids import topics_of
from search_spaces.sglang.versions import EngineVersion
from search_spaces.verdict import Violation
from tuner.checking import Checked


def document(checked: Checked) -> dict[str, Any]:
    verdict = checked.verdict
    memory = checked.memory
    return {
        "verdict": str(verdict.status),
        "stage": str(verdict.violations[0].stage) if verdict.violations else None,
        "argument_stages": str(checked.argument_stages),
        "violations": [_violation(broken) for broken in verdict.violations],
        "effective": _effective(verdict.effective),
        "adjustments": {change.name: f"{change.before} -> {change.after}" for change in verdict.adjustments},
        "suggestions": [argv_text(near, checked.server.version) for near in verdict.suggestions],
        "suggestions_fit": checked.suggestions_fit if verdict.suggestions else None,
        "weight_bytes_rank0": checked.weight_bytes_rank0,
        "weight_bytes_per_gpu": None if memory is None else memory.weight_bytes,
        "kv_tokens": memory.kv_tokens_total if memory is not None and checked.fits else None,
        "fits": checked.fits,
        "engine_version": str(checked.server.version),
    }


def argv_text(layout: Layout, version: EngineVersion) -> str:
    """Launch flags in one line; where `version` has no words for a layout, its label."""
    try:
        return " ".join(to_argv(layout, version)) or "--tp-size 1"
    except UnsupportedError:
        return layout.label


def _violation(broken: Violation) -> dict[str, Any]:
    return {
        "rule": broken.rule,
        "topics": list(topics_of(broken.rule)),
        "stage": str(broken.stage),
        "message": broken.message,
        "source": broken.source,
        "exception": broken.exception,
        "engine_text": broken.engine_text,
        "evidence": str(broken.evidence),
    }


def _effective(run: Layout) -> dict[str, Any]:
    derived = {"attn_tp_size": run.attn_tp_size, "moe_tp_size": run.moe_tp_size, "num_gpus": run.num_gpus}
    return {**{name: _plain(value) for name, value in vars(run).items()}, **derived}


def _plain(value: Any) -> Any:
    """JSON has no tuples, and no word for what is no finite number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
