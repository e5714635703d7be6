"""Which engine serves a trial, and the command that starts it.

The real SGLang and the simulated one are started by the same words, up to the program's name: one set of
flags, rendered by `search_spaces.sglang.flags`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.sglang.flags import to_argv
from search_spaces.sglang.versions import EngineVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """program: the words before the flags. extra_args: appended to every launch, verbatim.

    simulated_because: why the engine is a simulation; empty for a real one.
    clock_scale: seconds of the engine's clock that pass in a second, at most; 1 for a real one.
    """

    name: str
    version: EngineVersion
    program: tuple[str, ...]
    extra_args: tuple[str, ...] = ()
    simulated_because: str = ""
    simulator_args: tuple[str, ...] = ()
    clock_scale: float = 1.0
    release: str = ""
    """What the engine's package says it is, where that is not `version`: rules are known up to one version only."""

    @property
    def shown_version(self) -> str:
        return self.release or str(self.version)

    @property
    def is_simulated(self) -> bool:
        return bool(self.simulated_because)

    def command(self, layout: Layout, *, model_path: str, host: str, port: int, seed: int) -> tuple[str, ...]:
        """The words that start a server of `layout`. seed: of a simulated server's noise."""
        return (
            *self.program,
            "--model-path",
            model_path,
            *to_argv(layout, self.version),
            "--host",
            host,
            "--port",
            str(port),
            *self.extra_args,
            *self.simulator_args,
            *(("--seed", str(seed)) if self.is_simulated else ()),
        )

    def production_command(self, layout: Layout, *, model_path: str) -> tuple[str, ...]:
        """How a person would launch SGLang with `layout`: also for a layout found on the simulator."""
        program = ("python3", "-m", "sglang.launch_server") if self.is_simulated else self.program
        return (*program, "--model-path", model_path, *to_argv(layout, self.version), *self.extra_args)


DEFAULT_PROGRAM = (sys.executable, "-m", "sglang.launch_server")


def simulated(
    cluster: Cluster,
    version: EngineVersion,
    *,
    because: str,
    clock_scale: float,
    extra_args: Sequence[str] = (),
) -> Engine:
    """The simulated SGLang server, as a process of this Python.

    clock_scale: simulated seconds that may pass per wall second.
    """
    return Engine(
        name="simulated",
        version=version,
        program=(sys.executable, "-m", "tuner.simulator"),
        extra_args=tuple(extra_args),
        simulated_because=because,
        clock_scale=clock_scale,
        simulator_args=(
            "--cluster",
            cluster.name,
            "--clock-scale",
            f"{clock_scale:g}",
            "--engine-version",
            str(version),
            "--stream-interval",
            "16",
            "--simulated-because",
            because,
        ),
    )
