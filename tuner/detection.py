"""What this machine has: GPUs, and an SGLang that can be started."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces.catalogue import gpu_keys, load_gpu
from search_spaces.errors import MalformedError
from search_spaces.hardware import Cluster, Gpu
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner.containers import container_of
from tuner.servers.container_words import container_run_of, in_the_image, new_name

_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_MODULE = "sglang.launch_server"
_QUESTION = "import importlib.metadata as m; print(m.version('sglang'))"
_NOISE = re.compile(r"\b(nvidia|geforce|tesla|blackwell|sxm\d?|hbm\d?e?|\d+gb)\b")
_MEMORY_SLACK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    name: str
    memory_mib: int


def found_gpus() -> tuple[FoundGpu, ...]:
    """What `nvidia-smi` lists; empty where there is no driver or no GPU."""
    if shutil.which(_QUERY[0]) is None:
        return ()
    try:
        output = subprocess.run(_QUERY, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(output)


def parse_gpus(output: str) -> tuple[FoundGpu, ...]:
    """The lines of `nvidia-smi --query-gpu=name,memory.total --format=csv,noheader,nounits`."""
    found = []
    for line in output.splitlines():
        name, _, memory = line.rpartition(",")
        if name and memory.strip().isdigit():
            found.append(FoundGpu(name=name.strip(), memory_mib=int(memory)))
    return tuple(found)


def known_gpu(found: FoundGpu) -> Gpu | None:
    """The catalogue's entry for a GPU as the driver names it: by name, and by memory within 5 %."""
    wanted = _words(found.name)
    candidates = [
        gpu
        for gpu in map(load_gpu, gpu_keys())
        if not gpu.is_cpu
        and abs(gpu.memory_mib - found.memory_mib) <= _MEMORY_SLACK * gpu.memory_mib
        and (_words(gpu.key) <= wanted or _words(gpu.name) <= wanted or wanted <= _words(gpu.name))
    ]

    def likeness(gpu: Gpu) -> tuple[int, int]:
        words = _words(gpu.name)
        return len(words & wanted), -len(words - wanted)

    return max(candidates, key=likeness, default=None)


def _words(name: str) -> set[str]:
    return set(_NOISE.sub(" ", name.lower().replace("-", " ")).split())


def found_cluster(gpus: Sequence[FoundGpu]) -> Cluster | None:
    """This machine as a cluster, where it has GPUs, all of one known kind."""
    kinds = {gpu.name for gpu in gpus}
    known = known_gpu(gpus[0]) if len(kinds) == 1 else None
    return None if known is None else Cluster(gpu=known, gpus_per_node=len(gpus))


def holds(gpus: Sequence[FoundGpu], cluster: Cluster) -> bool:
    """Whether these are enough GPUs of the cluster's kind; of one that the catalogue lacks, by the driver's name."""
    here = found_cluster(gpus)
    if here is None:
        return {gpu.name for gpu in gpus} == {cluster.gpu.name} and len(gpus) >= cluster.gpus_per_node
    return here.gpu.key == cluster.gpu.key and len(gpus) >= cluster.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """version: what the engine's package says; `rules` is the version whose rules are applied to it.

    said_by: what else says so, where the package could not be asked.
    """

    version: str
    rules: EngineVersion
    said_by: str = ""

    @property
    def is_known(self) -> bool:
        return str(self.rules) == self.version


def installed_engine(program: Sequence[str]) -> InstalledEngine | None:
    """The SGLang that `program` would start; None where its version cannot be told.

    A `python -m sglang.launch_server` is asked by that Python's package metadata, without importing SGLang; one in a
    container by that of its image, where the image is here, else its tag says it. Raises UserError for a container that
    could not be ended.
    """
    run = container_run_of(program)
    words = program if run is None else run.inner
    if _MODULE not in words or "-m" not in words:
        return None if run is None else _as_tagged(program)
    python = words[: words.index("-m")]
    if run is None:
        return _answered([*python, "-c", _QUESTION])
    name = new_name()
    found = _answered(in_the_image(run, name, python, _QUESTION), on_silence=(*run.program, "rm", "-f", name))
    return found or _as_tagged(program)


def _answered(words: Sequence[str], on_silence: Sequence[str] = ()) -> InstalledEngine | None:
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        if on_silence and isinstance(error, subprocess.TimeoutExpired):
            subprocess.run(on_silence, capture_output=True, check=False)
        return None
    return InstalledEngine(version=answer[-1], rules=rules_of(answer[-1])) if answer else None


def _as_tagged(program: Sequence[str]) -> InstalledEngine | None:
    container = container_of(program)
    try:
        version = container.version
    except MalformedError:
        return None
    if version is None:
        return None
    return InstalledEngine(version=str(version), rules=version, said_by=f"the tag of {container.image}")


def rules_of(version: str) -> EngineVersion:
    """The release whose rules are applied to an engine of `version`: the newest where it is none that is known."""
    try:
        return EngineVersion.parse(version)
    except MalformedError:
        return NEWEST


def sglang_is_installed_here() -> bool:
    try:
        importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
