"""What was asked for, frozen: everything after the command line works from this value alone."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.workload import Workload
from tuner.engine import Engine
from tuner.load_mix import LoadMix
from tuner.objective import Aim
from tuner.secret_words import masked_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """model_path: what `--model-path` gets. trials: live trials of the study in all, earlier ones included.
    budget_s: wall seconds for this call; None for no limit. pins: layout fields held fixed.
    storage_url, tracking_uri: where Optuna and MLflow keep what they are told. port: 0 for any free one.
    hosts: other machines on which the servers run, as ssh knows them; none for this one.
    confirmations: how often each finalist is measured again. probes_correctness: whether answers are judged.
    """

    objective: Aim
    model: Model
    model_path: str
    cluster: Cluster
    workload: Workload
    engine: Engine
    storage_url: str
    tracking_uri: str
    artifact_root: str
    work_dir: str
    trials: int
    budget_s: float | None = None
    seed: int = 0
    port: int = 0
    hosts: tuple[str, ...] = ()
    confirmations: int = 2
    probes_correctness: bool = True
    baseline: Layout | None = None
    pins: Mapping[str, int | float | str] = field(default_factory=dict)
    study_name: str = ""
    mix: LoadMix = field(default_factory=LoadMix)
    space_key: str = ""
    """Of the layouts that are searched: a study belongs to one set of them."""

    @property
    def context(self) -> dict[str, object]:
        """What a measurement depends on besides the layout: equal contexts share measurements."""
        return {
            "model": self.model.name,
            "model_facts": _facts_key(self.model),
            "cluster": self.cluster.name,
            "engine": self.engine.name,
            "engine_version": self.engine.shown_version,
            "engine_program": [] if self.engine.is_simulated else list(masked_words(self.engine.program)),
            "engine_args": list(masked_words(self.engine.extra_args)),
            "workload": asdict(self.workload),
            "load": self.mix.identity,
            "figures": self.mix.figures,
        }

    @property
    def context_key(self) -> str:
        return _digest(self.context)

    @property
    def store_key(self) -> str:
        """Of the study storage, and of this host where the storage is a file on it: whose trials are one's own."""
        is_file = self.storage_url.startswith("sqlite")
        return _digest([socket.gethostname() if is_file else "", self.storage_url])

    @property
    def hosts_told(self) -> str:
        return ", ".join(self.hosts) or "this machine"

    @property
    def study(self) -> str:
        """The study's name: given, or made of what was asked, so that the same command finds it again."""
        if self.study_name:
            return self.study_name
        asked = {
            **self.context,
            "objective": self.objective.identity,
            "pins": dict(self.pins),
            "baseline": None if self.baseline is None else asdict(self.baseline),
            "space": self.space_key,
        }
        model = re.sub(r"[^A-Za-z0-9._-]+", "-", self.model.name)[:60]
        return f"{self.objective}-{model}-{self.cluster.name}-{self.engine.name}-{_digest(asked)}"


def space_key(layouts: Iterable[Layout]) -> str:
    """Equal for equal layouts in the same order."""
    return _digest([asdict(layout) for layout in layouts])


def _facts_key(model: Model) -> str:
    """Of what is served, under whatever name."""
    return _digest({k: str(_in_order(v)) for k, v in asdict(model).items() if k not in {"name", "source"}})


def _in_order(value: object) -> object:
    """With sets as sorted tuples: their own order differs from process to process."""
    match value:
        case set() | frozenset():
            return tuple(sorted(map(_in_order, value), key=str))
        case dict():
            return {_in_order(key): _in_order(each) for key, each in value.items()}
        case tuple() | list():
            return type(value)(map(_in_order, value))
        case _:
            return value


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:8]
