"""From the user's words to one frozen request. Every mistake ends here, before anything is started."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from search_spaces.catalogue import gpu_keys, hub_id, load_model, model_names, parse_cluster
from search_spaces.config_json import model_from_config
from search_spaces.errors import MalformedError, UnknownNameError, UnsupportedError, UserError
from search_spaces.hardware import Cluster
from search_spaces.layout import Layout
from search_spaces.model import Model
from search_spaces.sglang.flags import from_argv
from search_spaces.sglang.options import options_of
from search_spaces.sglang.versions import NEWEST, EngineVersion
from tuner import detection
from tuner.cluster_words import cluster_of
from tuner.engine import DEFAULT_PROGRAM, Engine, simulated
from tuner.engine_args import extra_args_of, program_of, shell_words

ENGINES = ("auto", "sglang", "simulated")
STORY_MODEL = "kimi-k2.6"
STORY_CLUSTER = "8xrtx-pro-6000"
DEFAULT_CLOCK_SCALE = 600.0
_STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,119}")
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|m|h|)")
_TIME_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S = 365 * 24 * 3600.0
_LEAST_PATIENCE_S = 1.0
_COUNT = re.compile(r"[0-9]{1,18}")
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """model_path: what the engine is given to load."""

    model: Model
    model_path: str


def served(word: str) -> Served:
    """`--model`: a folder with a config.json, or a name or hub id of the catalogue."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"--model is not valid text in this locale (got {word!r})") from None
    try:
        folder = Path(word).expanduser()
        exists = folder.exists()
    except (OSError, RuntimeError) as error:
        raise MalformedError(f"--model cannot be looked up: {shorten(str(error), 80)} ({_shown(word)})") from None
    if exists or word.startswith((".", "/", "~")):
        return Served(model=_from_folder(folder), model_path=str(folder))
    try:
        model = load_model(word)
    except UnknownNameError as error:
        raise UnknownNameError("model (and no folder)", word, model_names()) from error
    return Served(model=model, model_path=word if "/" in word else hub_id(model.name))


def served_elsewhere(word: str) -> Served:
    """A model that a launch for another machine names: by what its path says, where that is a catalogue model's.

    `/models/Kimi-K2.6`, and a cache's `.../models--moonshotai--Kimi-K2.6/snapshots/...`. Raises UserError.
    """
    try:
        return served(word)
    except UserError as error:
        for name in _names_in_path(word):
            try:
                return served(name)
            except UserError:
                continue
        raise UserError(f"{error}; --model says which model it is") from None


def _names_in_path(word: str) -> list[str]:
    cached = [part.removeprefix("models--").replace("--", "/") for part in Path(word).parts if "models--" in part]
    return [*cached, *filter(None, [Path(word).name])]


def _from_folder(folder: Path) -> Model:
    path = folder / "config.json" if folder.is_dir() else folder
    if path.name != "config.json" or not path.is_file():
        raise UnsupportedError(f"{folder} holds no config.json: name the folder of a model, or one of the catalogue")
    quantization = path.with_name("hf_quant_config.json")
    return model_from_config(
        _json_object(path),
        name=path.resolve().parent.name,
        source=str(path),
        hf_quant_config=_json_object(quantization) if quantization.is_file() else None,
    )


def _json_object(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise MalformedError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise MalformedError(f"{path} is not a JSON object")
    return found


def study_name(word: str) -> str:
    """`--study`: it becomes a folder's name."""
    if not _STUDY_NAME.fullmatch(word):
        raise MalformedError(
            "--study is up to 120 letters, digits, dots, dashes, underscores and spaces, and starts with a letter or "
            f"digit (got {_shown(word)})"
        )
    return word


def stores(root: Path, storage: str | None, tracking_uri: str | None) -> tuple[str, str]:
    """Where Optuna and MLflow write: as told, else under `root`."""
    if (storage is None or tracking_uri is None) and set(str(root)) & set("?%#"):
        raise UserError(
            f"the path of this folder holds '?', '%' or '#', which a database's address cannot: {root}; run it in "
            "another folder, or name --storage and --tracking-uri"
        )
    storage = f"sqlite:///{root / 'optuna.db'}" if storage is None else storage
    tracking_uri = f"sqlite:///{root / 'mlflow.db'}" if tracking_uri is None else tracking_uri
    if storage in {"sqlite://", "sqlite:///", "sqlite:///:memory:"}:
        raise UserError(f"--storage {storage} is kept in memory: a study that cannot be resumed is not kept")
    files = [Path(url.removeprefix("sqlite:///")).absolute() for url in (storage, tracking_uri) if "sqlite:///" in url]
    if len(files) == 2 and files[0] == files[1]:
        raise UserError(f"--storage and --tracking-uri name the same file, {files[0]}: each needs one of its own")
    return storage, tracking_uri


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """notices: what a person should know about how it was chosen."""

    engine: Engine
    cluster: Cluster
    notices: tuple[str, ...] = ()


def choose_engine(
    word: str,
    *,
    cluster_word: str | None,
    engine_command: str | None,
    engine_args: str,
    engine_version: str | None,
    clock_scale: float | None,
    is_story: bool = False,
    is_elsewhere: bool = False,
) -> Chosen:
    """`--engine`, with what this machine has.

    `auto` takes SGLang where it and the cluster's GPUs are found, else simulates and says what was missing.
    `sglang` never falls back: raises UserError, also for an --engine-command whose program is not there, and for what
    the engine that is taken would not heed. clock_scale: None for the usual one. is_story: neither model nor cluster
    was named, so that what is simulated is the story, whatever GPUs this machine has. is_elsewhere: servers run on
    another machine, so that what this one has does not matter.
    """
    if word not in ENGINES:
        raise UnknownNameError("engine", word, ENGINES)
    if word == "simulated" and engine_command is not None:
        raise UserError("--engine-command starts a real engine, and --engine simulated was asked for: leave one out")
    program = engine_program(engine_command)
    gpus = [] if is_elsewhere else detection.found_gpus()
    here = detection.found_cluster(gpus)
    cluster = cluster_of(cluster_word) if cluster_word is not None else here or parse_cluster(STORY_CLUSTER)
    extra_args = extra_args_of(engine_args)
    missing = [] if is_elsewhere else _missing(cluster, gpus, engine_command)
    if word == "simulated" or (word == "auto" and missing):
        because = " and ".join(missing) if word == "auto" else "--engine simulated was asked for"
        version = EngineVersion.parse(engine_version) if engine_version else NEWEST
        cluster = parse_cluster(STORY_CLUSTER) if is_story else cluster
        if cluster.gpu.key not in gpu_keys():
            raise UnsupportedError(
                f"{cluster.gpu.name} is simulated by nothing: the simulator knows the GPUs of the catalogue "
                f"({' and '.join(missing) or because})"
            )
        scale = clock_scale or DEFAULT_CLOCK_SCALE
        engine = simulated(cluster, version, because=because, clock_scale=scale, extra_args=extra_args)
        unheeded = () if engine_command is None else ("--engine-command is not used: the engine is simulated",)
        return Chosen(engine=engine, cluster=cluster, notices=unheeded)
    if missing:
        hint = "; SGLang in another environment is named with --engine-command" if engine_command is None else ""
        raise UserError(f"--engine sglang cannot run here: {' and '.join(missing)}{hint}")
    if clock_scale is not None:
        raise UserError("--clock-scale is of the simulated engine, and this is SGLang: leave it out")
    if cluster.num_nodes > 1 and not is_elsewhere:
        raise UserError(
            f"{cluster.name}: name the {cluster.num_nodes} machines by --host, once for each, or use --slurm in an "
            "allocation that has them"
        )
    return _sglang(cluster, program, extra_args, engine_version, is_elsewhere=is_elsewhere)


def _missing(
    cluster: Cluster,
    gpus: Sequence[detection.FoundGpu],
    engine_command: str | None,
) -> list[str]:
    """What a live trial would need and this machine lacks."""
    missing = []
    if not cluster.gpu.is_cpu:
        if not gpus:
            missing.append("no GPU was found on this machine (nvidia-smi)")
        elif not detection.holds(gpus, cluster):
            names = ", ".join(sorted({g.name for g in gpus}))
            missing.append(f"this machine has {len(gpus)} GPUs ({names}), not {cluster.name}")
    if engine_command is None and not detection.sglang_is_installed_here():
        missing.append("SGLang is not installed in this Python")
    return missing


def engine_program(engine_command: str | None) -> tuple[str, ...]:
    """`--engine-command`: the words that start SGLang, this Python's where nothing is said. Raises UserError."""
    return DEFAULT_PROGRAM if engine_command is None else program_of(engine_command)


def _check_program(program: tuple[str, ...]) -> None:
    """Raises UserError where what starts SGLang is not on this machine."""
    if shutil.which(program[0]) is None:
        raise UserError(f"--engine-command: there is no program {program[0]} on this machine, or it may not be run")


def _sglang(
    cluster: Cluster,
    program: tuple[str, ...],
    extra_args: tuple[str, ...],
    engine_version: str | None,
    *,
    is_elsewhere: bool,
) -> Chosen:
    if not is_elsewhere:
        _check_program(program)
    installed = None if is_elsewhere else detection.installed_engine(program)
    notices: tuple[str, ...] = ()
    release = installed.version if installed is not None else ""
    if engine_version:
        version = EngineVersion.parse(engine_version)
    elif installed is None:
        version = NEWEST
        notices = (f"the engine's version could not be told: taken for {NEWEST} (--engine-version says otherwise)",)
    else:
        version = installed.rules
        if installed.said_by:
            notices = (f"SGLang {version}, as {installed.said_by} says (--engine-version says otherwise)",)
        elif not installed.is_known:
            notices = (f"SGLang {installed.version} is judged by the rules of {version}",)
    if cluster.gpu.is_cpu and "--device" not in extra_args:
        extra_args = ("--device", "cpu", *extra_args)
    engine = Engine(name="sglang", version=version, program=program, extra_args=extra_args, release=release)
    return Chosen(engine=engine, cluster=cluster, notices=notices)


def layout_of(option: str, text: str, version: EngineVersion) -> Layout:
    """Launch flags as a layout; anything that is not about the layout is refused."""
    parsed = from_argv(shell_words(option, text), version)
    if parsed.rest:
        raise MalformedError(f"{option} takes layout flags only; not understood: {' '.join(parsed.rest)}")
    return parsed.layout


def pins_of(words: Sequence[str]) -> dict[str, int | float | str]:
    """`tp_size=8`, as often as given."""
    pins: dict[str, int | float | str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise MalformedError(f"--pin is written name=value, e.g. tp_size=8 (got {word!r})")
        key = _field(name.strip())
        if key in pins:
            raise MalformedError(f"--pin {key} is given twice")
        pins[key] = _value(value.strip())
    return pins


def _field(name: str) -> str:
    """The layout field that `tp_size`, `tp-size`, `--tp` or `tensor-parallel-size` names."""
    key = name.lstrip("-").replace("-", "_")
    written = f"--{key.replace('_', '-')}"
    known = options_of(NEWEST)
    dests = {option.dest for begun, option in known.items() if begun.startswith(written)}
    exact = known.get(written)
    dest = exact.dest if exact is not None else dests.pop() if len(dests) == 1 else key
    if exact is None and f"{written}-size" in known:
        dest = known[f"{written}-size"].dest
    return dest if dest in vars(Layout()) else key


def _value(text: str) -> int | float | str:
    for read in (int, float):
        try:
            value = read(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return text


def time_s_of(option: str, text: str | None) -> float | None:
    """`90m`, `2h`, `45s`; a bare number is minutes."""
    if text is None:
        return None
    match = _TIME.fullmatch(text.strip().lower())
    seconds = float(match[1]) * _TIME_UNITS_S[match[2] or "m"] if match else 0.0
    if seconds <= 0:
        raise MalformedError(
            f"{option} is a time above zero, e.g. 90m, 2h or 45s; a bare number is minutes (got {_shown(text)})"
        )
    if seconds > _LONGEST_S:
        raise MalformedError(f"{option} is at most a year, {_LONGEST_S / 3600:.0f}h (got {_shown(text)})")
    return seconds


def patience_s_of(text: str | None) -> float | None:
    """`--patience`: a time, and one in which a server can say something."""
    seconds = time_s_of("--patience", text)
    if seconds is not None and seconds < _LEAST_PATIENCE_S:
        raise MalformedError(f"--patience is at least {_LEAST_PATIENCE_S:g}s (got {text!r})")
    return seconds


def concurrencies_of(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(_COUNT.fullmatch(word) for word in words):
        raise MalformedError(f"--concurrency is rising numbers from 1, e.g. 1,4,16,64 (got {_shown(text)})")
    return tuple(map(int, words))


def _shown(text: str) -> str:
    """Quoted, and cut where it is long."""
    return repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r}..."
