"""Where this project and an installed engine differ about a launch. The engine wins where it may speak."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search_spaces.hardware import Cluster
from search_spaces.verdict import Stage, Verdict, Violation
from tuner.installed_engine import Answer, Platform

_MEMORY_SLACK = 0.05
_LEGAL = "legal"
_SAME_FOR_ALL_WE_KNOW = frozenset({("intel_amx", "torch_native")})
"""(ours, the engine's): without AMX it takes other kernels, which no cluster's name tells (overrides.py:1310)."""
_DERIVED = frozenset({"attn_tp_size", "moe_tp_size"})
"""Widths that follow from others, and mean nothing where those do not fit together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """name: `verdict`, or the field of the layout that was resolved in two ways."""

    name: str
    ours: str
    engine: str


def compare(verdict: Verdict, answer: Answer) -> tuple[Difference, ...]:
    """Empty where they agree. What the engine was not asked about is no difference.

    A stage that the answer did not reach has no verdict of the engine's; a value that this project leaves open
    (None) is no claim.
    """
    ours = first_of(verdict, answer.asked)
    refused = ours is not None or answer.stage is not None
    if refused and (ours is None or ours.stage is not answer.stage):
        return (Difference(name="verdict", ours=_said(ours), engine=_answered(answer)),)
    return tuple(
        Difference(name=name, ours=str(value), engine=str(answer.resolved[name]))
        for name in answer.resolved
        if not (refused and name in _DERIVED)
        and (value := getattr(verdict.effective, name)) is not None
        and not _same(value, answer.resolved[name])
    )


def first_of(verdict: Verdict, stages: tuple[Stage, ...]) -> Violation | None:
    """What stops the launch first, among the stages that were asked about."""
    return next((violation for violation in verdict.violations if violation.stage in stages), None)


def speaks_for(platform: Platform, cluster: Cluster) -> bool:
    """Whether the engine was asked under the facts of the GPUs that are to run the launch."""
    gpu = cluster.gpu
    if gpu.is_cpu:
        return platform.kind == "cpu"
    if platform.kind != f"cuda sm_{gpu.sm}":
        return False
    return abs(platform.memory_mib - gpu.memory_mib) <= _MEMORY_SLACK * gpu.memory_mib


def _said(violation: Violation | None) -> str:
    return _LEGAL if violation is None else f"refused at {violation.stage}: {violation.message} [{violation.rule}]"


def _answered(answer: Answer) -> str:
    if answer.stage is None:
        return _LEGAL
    return f"refused at {answer.stage}: {answer.exception} {answer.error or '(no text)'} ({answer.at})"


def _same(ours: object, engine: object) -> bool:
    if isinstance(ours, float) and isinstance(engine, int | float):
        return math.isclose(ours, engine, abs_tol=1e-6)
    return ours == engine or (ours, engine) in _SAME_FOR_ALL_WE_KNOW
