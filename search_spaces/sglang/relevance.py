"""What a rule can rely on in a launch, and which rules can have something to say about it.

Many layouts are judged that differ in a few sizes; what they share is found out once.
"""

from __future__ import annotations

from functools import cache
from operator import attrgetter

from search_spaces.layout import Layout
from search_spaces.sglang.rule import ATTENTION, CHOICES, EXPERTS, SIZES, WIDTHS, Launch, Rule
from search_spaces.sglang.rules_arguments import CHOSEN, is_known_word
from search_spaces.sglang.versions import EngineVersion

_words = attrgetter(*CHOSEN)
_DEFAULT = Layout()


def sound_parts(asked: Layout, run: Layout, version: EngineVersion) -> frozenset[str]:
    """Which of CHOICES, SIZES, WIDTHS, ATTENTION and EXPERTS hold."""
    are_known = _are_known(_words(asked), version)
    if min(run.tp_size, run.attn_dp_size, run.attn_cp_size, run.ep_size, run.moe_dp_size) < 1:
        return _parts(are_known, False, False, False, False)
    return _parts(
        are_known,
        True,
        min(run.pp_size, run.dp_size, run.nnodes) >= 1,
        run.tp_size % (run.attn_dp_size * run.attn_cp_size) == 0,
        run.tp_size % (run.ep_size * run.moe_dp_size) == 0,
    )


@cache
def _parts(*holds: bool) -> frozenset[str]:
    names = (CHOICES, WIDTHS, SIZES, ATTENTION, EXPERTS)
    return frozenset(name for name, does in zip(names, holds, strict=True) if does)


@cache
def _are_known(words: tuple[object, ...], version: EngineVersion) -> bool:
    return all(is_known_word(name, word, version) for name, word in zip(CHOSEN, words, strict=True))


class RuleBook:
    """Rules in the engine's order, by what they can be about."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._concerned = tuple(sorted({name for rule in rules for name in rule.concerns}))
        self._values = attrgetter(*self._concerned)
        self._asked = cache(self._fields_asked)
        self._relevant = cache(self._relevant_to)

    def relevant_to(self, launch: Launch) -> tuple[tuple[int, Rule], ...]:
        """The rules that `launch` may break, each with its place among all of them."""
        return self._relevant(
            launch.version,
            launch.cluster.gpu.is_cpu,
            launch.target.model.architecture,
            launch.effective.moe_a2a_backend,
            launch.sound,
            self._asked(self._values(launch.asked)),
        )

    def _fields_asked(self, values: tuple[object, ...]) -> frozenset[str]:
        named = zip(self._concerned, values, strict=True)
        return frozenset(name for name, value in named if value != getattr(_DEFAULT, name))

    def _relevant_to(
        self,
        version: EngineVersion,
        is_cpu: bool,
        architecture: str,
        backend: str,
        sound: frozenset[str],
        asked: frozenset[str],
    ) -> tuple[tuple[int, Rule], ...]:
        return tuple(
            (place, rule)
            for place, rule in enumerate(self._rules)
            if rule.holds_for(version, is_cpu=is_cpu)
            and rule.needs <= sound
            and (not rule.architectures or architecture in rule.architectures)
            and (not rule.backends or backend in rule.backends)
            and (not rule.concerns or not rule.concerns.isdisjoint(asked))
        )
