"""The words that the engine's MoE options accept, by release, in the order of its own messages."""

from __future__ import annotations

from functools import cache

from search_spaces.sglang.options import choices_of
from search_spaces.sglang.versions import EngineVersion


@cache
def moe_a2a_backends(version: EngineVersion) -> tuple[str, ...]:
    """What `--moe-a2a-backend` accepts."""
    return choices_of("moe_a2a_backend", version)


@cache
def moe_runner_backends(version: EngineVersion) -> tuple[str, ...]:
    """What `--moe-runner-backend` accepts."""
    return choices_of("moe_runner_backend", version)


@cache
def deepep_modes(version: EngineVersion) -> tuple[str, ...]:
    """What `--deepep-mode` accepts."""
    return choices_of("deepep_mode", version)
