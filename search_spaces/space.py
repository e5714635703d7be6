"""Every legal layout of a model on a cluster, in a fixed order, and why the others are refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, get_args, get_type_hints

from search_spaces.errors import CannotRunError, MalformedError, UnknownNameError, UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import LARGEST_NUMBER, Layout
from search_spaces.model import Model
from search_spaces.sglang.all_reduce import other_path_flags
from search_spaces.sglang.choices import moe_a2a_backends
from search_spaces.sglang.experts import falls_back_from_megamoe
from search_spaces.sglang.rules import first_violation, judge, launch_of
from search_spaces.sglang.target import Target
from search_spaces.sglang.versions import NEWEST, EngineVersion
from search_spaces.verdict import Violation

MEM_FRACTIONS = (0.80, 0.85, 0.90, 0.94)
_BASELINE_MEM_FRACTION = 0.90

_OTHER_HARDWARE = frozenset({"ascend_fuseep", "ascend_tp", "mori"})
"""All-to-all backends for NPUs and AMD GPUs."""

_SIZES = ("tp_size", "pp_size", "dp_size", "attn_dp_size", "attn_cp_size", "ep_size", "moe_dp_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A legal layout, as it is asked for and as it runs."""

    requested: Layout
    effective: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """candidates: legal, no two with the same effective layout, in a fixed order.
    refused: combinations by the rule that stops them first; memory fractions do not count apart.
    renamed: legal combinations that run as another one does, and so are no candidates of their own.
    examples: one refused layout for each of these rules.
    considered: combinations in all, without memory fractions.
    baseline: plain tensor parallelism, even where the pins exclude it, or the candidate nearest to it where it
        is illegal; always among the candidates.
    """

    candidates: tuple[Candidate, ...]
    refused: Mapping[str, int]
    renamed: int
    examples: Mapping[str, Layout]
    considered: int
    baseline: Candidate


def enumerate_space(
    model: Model,
    cluster: Cluster,
    version: EngineVersion = NEWEST,
    *,
    mem_fractions: Sequence[float | None] = MEM_FRACTIONS,
    pins: Mapping[str, int | str | float] | None = None,
    extra: Sequence[Layout] = (),
    all_reduce_paths: bool = False,
) -> Space:
    """All layouts that use every GPU of `cluster`.

    mem_fractions: values of `mem_fraction_static` to try, None for the engine's own; CPU servers take none.
    pins: layout fields that are fixed. extra: layouts to put first, as they are, where they are legal.
    all_reduce_paths: whether each layout is offered once more, at the usual memory fraction, for each other plausible
        way of its all-reduces (`other_path_flags`); they are candidates, but no combinations of their own.

    Raises UnknownNameError and MalformedError for a pin that is no field or has the wrong type, and
    UserError where nothing legal is left.
    """
    pinned = _checked_pins(pins or {})
    judging = _Judge(model, cluster, version)
    fractions = _fractions(cluster, mem_fractions, pinned)
    varied = {min(fractions, key=_from_usual)} if all_reduce_paths else set()
    found: dict[Layout, Candidate] = {}
    for layout in extra:
        own = judging.candidate(layout, keep_fallback=True)
        if isinstance(own, Candidate):
            found.setdefault(own.effective, own)
    refused: Counter[str] = Counter()
    examples: dict[str, Layout] = {}
    considered = renamed = 0
    for combination in _combinations(cluster, version, pinned):
        considered += 1
        num_found = len(found)
        for fraction in fractions:
            layout = combination.changed(mem_fraction_static=fraction)
            candidate = judging.candidate(layout)
            if isinstance(candidate, str):
                refused[candidate] += fraction == fractions[0]
                examples.setdefault(candidate, layout)
                break
            for each in judging.ways(candidate, pinned if fraction in varied else None):
                found.setdefault(each.effective, each)
        else:
            renamed += len(found) == num_found
    candidates = tuple(found.values())
    if not candidates:
        if not refused:
            raise UserError(_no_combination(cluster, pinned))
        again = (each.changed(mem_fraction_static=fractions[0]) for each in _combinations(cluster, version, pinned))
        common = judging.common_violation(examples.values(), again)
        raise CannotRunError(_nothing_left(model, cluster, pinned, refused, common))
    usual = _plain(cluster, fractions)
    plain = judging.candidate(usual.changed(**_without_sizes(pinned)))
    if isinstance(plain, Candidate):
        baseline = found.setdefault(plain.effective, plain)
    else:
        baseline = min(candidates, key=lambda near: _strangeness(usual, near.effective))
    return Space(
        candidates=tuple(found.values()),
        refused=dict(refused.most_common()),
        renamed=renamed,
        examples=examples,
        considered=considered,
        baseline=baseline,
    )


class _Judge:
    """Judges many layouts of one model on one cluster."""

    def __init__(self, model: Model, cluster: Cluster, version: EngineVersion) -> None:
        self._target = Target(model=model, gpu=cluster.gpu)
        self._cluster = cluster
        self._version = version

    def candidate(self, layout: Layout, *, keep_fallback: bool = False) -> Candidate | str:
        """The layout as it would run, or the id of the rule that stops it.

        A layout that asks for MegaMoE and would run without it is a costlier name for plain expert
        parallelism; it is refused as `megamoe.falls_back` unless it is to be kept.
        """
        launch = launch_of(layout, self._target, self._cluster, self._version)
        broken = first_violation(launch)
        if broken is not None:
            return broken.id
        if falls_back_from_megamoe(launch) and not keep_fallback:
            return "megamoe.falls_back"
        return Candidate(requested=layout, effective=launch.effective)

    def ways(self, candidate: Candidate, pinned: Collection[str] | None) -> Iterator[Candidate]:
        """The layout, and unless `pinned` is None the same with other ways of its all-reduces, as far as they are
        legal and their flags are not pinned."""
        yield candidate
        if pinned is None:
            return
        for flags in other_path_flags(self._target.model, self._cluster, candidate.effective, self._version):
            other = self.candidate(candidate.requested.changed(**flags))
            if isinstance(other, Candidate) and flags.keys().isdisjoint(pinned):
                yield other

    def common_violation(self, examples: Collection[Layout], all_of_them: Iterable[Layout]) -> Violation | None:
        """What all of some refused layouts break, whichever rule stops them first; guessed from a few `examples`."""
        broken = [self._violations(layout) for layout in examples]
        rules = [rule for rule in broken[0] if all(rule in others for others in broken)]
        if not rules or not all(rules[0] in self._violations(layout) for layout in all_of_them):
            return None
        return broken[0][rules[0]]

    def _violations(self, layout: Layout) -> Mapping[str, Violation]:
        verdict = judge(layout, self._target.model, self._cluster, self._version, suggest=False)
        return {broken.rule: broken for broken in verdict.violations}


def _combinations(cluster: Cluster, version: EngineVersion, pinned: Mapping[str, Any]) -> Iterator[Layout]:
    """Layouts that use all GPUs, widest TP first, without a memory fraction."""
    num_gpus = cluster.num_gpus
    backends = ["none"]
    if not cluster.gpu.is_cpu:
        backends += [b for b in moe_a2a_backends(version) if b != "none" and b not in _OTHER_HARDWARE]
    base = Layout(nnodes=cluster.num_nodes).changed(**_without_sizes(pinned))

    def choices(name: str, values: Sequence[Any]) -> Sequence[Any]:
        return (pinned[name],) if name in pinned else values

    shares = _divisors(num_gpus)
    outer = product(choices("tp_size", shares[::-1]), choices("pp_size", shares), choices("dp_size", shares))
    for tp, pp, dp in outer:
        if tp * pp * dp != num_gpus:
            continue
        widths = _divisors(tp)
        inner = product(
            choices("attn_dp_size", widths),
            choices("attn_cp_size", widths),
            choices("moe_dp_size", widths),
            choices("ep_size", widths),
            choices("moe_a2a_backend", backends),
        )
        for attn_dp, attn_cp, moe_dp, ep, backend in inner:
            yield base.changed(
                tp_size=tp,
                pp_size=pp,
                dp_size=dp,
                attn_dp_size=attn_dp,
                attn_cp_size=attn_cp,
                moe_dp_size=moe_dp,
                ep_size=ep,
                moe_a2a_backend=backend,
            )


def _fractions(
    cluster: Cluster, offered: Sequence[float | None], pinned: Mapping[str, Any]
) -> tuple[float | None, ...]:
    if "mem_fraction_static" in pinned:
        return (pinned["mem_fraction_static"],)
    return (None,) if cluster.gpu.is_cpu else tuple(offered)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(size for size in range(1, number + 1) if number % size == 0)


def _checked_pins(pins: Mapping[str, int | str | float]) -> dict[str, Any]:
    kinds = _field_kinds()
    for name, value in pins.items():
        if type(value) is int and abs(value) > LARGEST_NUMBER:
            raise MalformedError(f"{name} is pinned to a number beyond the 64 bits in which SGLang counts")
        if name not in kinds:
            raise UnknownNameError("layout field", name, kinds)
        if not any(_is_of(kind, value) for kind in kinds[name]):
            words = " or ".join(kind.__name__ for kind in kinds[name])
            raise MalformedError(f"{name} is pinned to {value!r}, but must be of type {words}")
    return dict(pins)


@cache
def _field_kinds() -> Mapping[str, tuple[type, ...]]:
    """The types of each layout field that a pin can have: of lists none."""
    found = {}
    for name, hint in get_type_hints(Layout).items():
        options = tuple(kind for kind in (get_args(hint) or (hint,)) if kind in {int, str, float, bool})
        if options:
            found[name] = options
    return found


def _is_of(kind: type, value: object) -> bool:
    return isinstance(value, (int, float)) if kind is float else type(value) is kind


def _asked(pinned: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in pinned.items()) or "no pins"


def _no_combination(cluster: Cluster, pinned: Mapping[str, Any]) -> str:
    return (
        f"no layout uses all {cluster.num_gpus} GPUs of {cluster.name} with {_asked(pinned)}: "
        "dp_size * tp_size * pp_size must be the number of GPUs"
    )


def _nothing_left(
    model: Model, cluster: Cluster, pinned: Mapping[str, Any], refused: Mapping[str, int], common: Violation | None
) -> str:
    nothing = f"no legal layout of {model.name} on {cluster.name} with {_asked(pinned)}"
    if common is not None:
        return f"{nothing}; all are refused by {common.rule}: {common.message}"
    rule = max(refused, key=lambda name: refused[name])
    return f"{nothing}; most are refused by {rule} ({refused[rule]} of {sum(refused.values())})"


def _plain(cluster: Cluster, fractions: Sequence[float | None]) -> Layout:
    """Plain TP over all GPUs at the usual memory fraction."""
    fraction = min(fractions, key=_from_usual)
    return Layout(tp_size=cluster.num_gpus, nnodes=cluster.num_nodes, mem_fraction_static=fraction)


def _without_sizes(pinned: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in pinned.items() if name not in (*_SIZES, "moe_a2a_backend")}


def _from_usual(fraction: float | None) -> float:
    return 0.0 if fraction is None else abs(fraction - _BASELINE_MEM_FRACTION)


def _strangeness(plain: Layout, near: Layout) -> tuple[int, float, float]:
    """How far `near` is from `plain`: changed fields, change of sizes in powers of two, memory fraction."""
    changed = sum(getattr(plain, name) != getattr(near, name) for name in (*_SIZES, "moe_a2a_backend"))
    steps = sum(abs(math.log2(getattr(near, name) / getattr(plain, name))) for name in _SIZES)
    return changed, steps, _from_usual(near.mem_fraction_static)
