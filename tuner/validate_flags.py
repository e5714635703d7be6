"""The launch flags that a line of measurements says beside its sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.errors import UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.flags import flags_from_mapping, from_argv
from search_spaces.sglang.rules import judge
from search_spaces.sglang.target import Target
from search_spaces.sglang.uncounted_memory import uncounted_memory
from search_spaces.sglang.versions import EngineVersion
from tuner.validate_fields import Reason, SkippedError


def flag_words(said: Mapping[str, Any], version: EngineVersion) -> tuple[str, ...] | None:
    """`flags` of a line, an object as `tune check --batch` takes it, as words. None where it has none."""
    flags = said.get("flags")
    if flags is None:
        return None
    if not isinstance(flags, dict):
        raise SkippedError(Reason.BAD_VALUE, "flags is an object, e.g. {'attention-backend': 'triton'}")
    try:
        return flags_from_mapping(flags, version)
    except UserError as error:
        raise SkippedError(Reason.BAD_VALUE, f"flags: {error}") from None


def launch_of(words: tuple[str, ...], sizes: Mapping[str, int], version: EngineVersion) -> Layout:
    """The flags as `version` reads them. sizes: of the layout, by its fields, as the line says them elsewhere."""
    try:
        launch = from_argv(words, version).layout
        launch.check_numbers()
    except UserError as error:
        raise SkippedError(Reason.BAD_VALUE, f"flags: {error}") from None
    plain = Layout()
    for name in (*sizes, "dp_size"):
        if getattr(launch, name) != getattr(plain, name):
            raise SkippedError(Reason.UNCLEAR_LAYOUT, f"flags says {name}: sizes are fields of their own")
    if launch.speculative_algorithm is not None:
        raise SkippedError(Reason.SPECULATIVE, "nothing says how many tokens a step of it yields")
    return launch


def refuse_impossible(asked: Layout, model: Model, cluster: Cluster, version: EngineVersion) -> None:
    """Raises SkippedError for a value with which no server starts, whatever the model and the release."""
    for broken in judge(asked, model, cluster, version, suggest=False).violations:
        if broken.rule.endswith((".positive", ".choice")):
            raise SkippedError(Reason.BAD_VALUE, f"flags: {broken.message}")


def refuse_unmodelled(
    words: tuple[str, ...], asked: Layout, run: Layout, target: Target, version: EngineVersion
) -> None:
    """Raises SkippedError for flags that make another server of it than the layout: in CPU memory, quantised anew, of
    another configuration, with adapters, ...

    run: the effective layout. What only divides the KV cache otherwise is compared as it is.
    """
    others = from_argv(words, version).others
    moved = [each.words for each in uncounted_memory(others, asked, run, target, version, {}) if each.changes_times]
    if moved:
        names = dict.fromkeys(word.split()[0] for word in moved)
        raise SkippedError(
            f"{Reason.UNKNOWN_FLAGS}: {', '.join(names)}", f"predictions are of servers without {' and '.join(moved)}"
        )
