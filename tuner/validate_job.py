"""`tune validate`: reads measured points, predicts them and tells how far off the predictions are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_models.setting import ServingEngine
from search_spaces.errors import MalformedError, UnknownNameError
from tuner import validate_text
from tuner.exit_code import Exit
from tuner.standard_input import standard_input
from tuner.validate_fields import Reason
from tuner.validate_lines import refuse_wide
from tuner.validate_predict import Comparison, compare, compare_calibrated, compare_left_out
from tuner.validate_report import Report, document, report
from tuner.validate_rows import MeasuredRow, Skipped, bundled_lines, bundled_rows, engine_named, read_rows
from tuner.voice import Voice

_BUNDLED = "the public sweeps that come with the tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest:
    """file: None for the bundled sweeps, - for stdin. calibrate: points of each curve to fix its factor by; 0: none.

    by: parts that people want a table of, of `validate_text.PARTS`.
    """

    file: str | None = None
    engine: str | None = None
    moe_only: bool = False
    max_tp: int | None = None
    with_flagged: bool = False
    leave_one_out: bool = False
    calibrate: int = 0
    by: tuple[str, ...] = ()


def run(request: ValidateRequest, *, json_output: bool) -> Exit:
    """Raises UserError."""
    for part in request.by:
        if part not in validate_text.PARTS:
            raise UnknownNameError("part", part, validate_text.PARTS)
    found = validated(request)
    voice = Voice()
    if json_output:
        voice.document(json.dumps(document(found), indent=2, allow_nan=False) + "\n")
    else:
        voice.result(*validate_text.lines(found, voice.width, request.by))
    return Exit.DONE


def validated(request: ValidateRequest) -> Report:
    """Raises UserError, also where no line can be compared."""
    if request.leave_one_out and request.calibrate:
        raise MalformedError("--leave-one-out and --calibrate are two ways of choosing constants: name one of them")
    engine = None if request.engine is None else engine_named(request.engine)
    name = _BUNDLED if request.file is None else request.file
    read = list(read_rows(_lines(request.file), with_flagged=request.with_flagged))
    kept = [each for each in read if _is_asked_for(each, request, engine)]
    rows = [each for each in kept if isinstance(each, MeasuredRow)]
    unread = [each for each in kept if isinstance(each, Skipped)]
    if not rows:
        raise MalformedError(f"{name}: no line of it can be compared{_why(read, kept, unread)}")
    answers = _compared(rows, request)
    compared = [each for each in answers if isinstance(each, Comparison)]
    skipped = sorted([*unread, *(each for each in answers if isinstance(each, Skipped))], key=lambda each: each.line)
    if not compared:
        raise MalformedError(f"{name}: no line of it can be compared{_why(read, kept, skipped)}")
    return report(
        compared,
        skipped,
        name=name,
        how=_how(request),
        filters={"engine": engine, "moe_only": request.moe_only, "max_tp": request.max_tp},
        left_out=len(read) - len(kept),
        fitted_pairs=() if request.leave_one_out or request.calibrate else _fitted_pairs(read),
    )


def _fitted_pairs(read: Sequence[MeasuredRow | Skipped]) -> frozenset[object]:
    return frozenset(each.pair for each in read if isinstance(each, MeasuredRow) and each.used_for_fitting)


def _lines(name: str | None) -> list[str] | list[bytes]:
    if name is None:
        return bundled_lines()
    if name == "-":
        return _checked("stdin", standard_input().read())
    if not name.strip():
        raise MalformedError("FILE is a file of JSON lines, or - for stdin (got '')")
    try:
        return _checked(name, Path(name).read_bytes())
    except OSError as error:
        raise MalformedError(f"{name} cannot be read: {error.strerror}") from None


def _checked(name: str, data: bytes) -> list[bytes]:
    try:
        refuse_wide(data)
    except MalformedError as error:
        raise MalformedError(f"{name} {error}") from None
    return data.splitlines()


def _is_asked_for(each: MeasuredRow | Skipped, request: ValidateRequest, engine: ServingEngine | None) -> bool:
    if isinstance(each, Skipped):
        return engine is None or each.engine == engine or each.engine not in set(ServingEngine)
    return (
        (engine is None or each.engine is engine)
        and (not request.moe_only or each.model.is_moe)
        and (request.max_tp is None or each.layout.tp_size <= request.max_tp)
    )


def _compared(rows: Sequence[MeasuredRow], request: ValidateRequest) -> list[Comparison | Skipped]:
    if request.calibrate:
        return compare_calibrated(rows, request.calibrate)
    if request.leave_one_out:
        from tuner.fitting import fit_all  # noqa: PLC0415 (brings scipy)

        engines = {row.engine for row in rows} | {ServingEngine.SGLANG}
        fitted_on = [row for row in bundled_rows() if row.used_for_fitting and row.engine in engines]
        return compare_left_out(rows, lambda others: fit_all(others).constants, fitted_on)
    return compare(rows)


def _how(request: ValidateRequest) -> str:
    if request.leave_one_out:
        return "constants refitted for each without its own model and GPU"
    if request.calibrate:
        points = "one point" if request.calibrate == 1 else f"{request.calibrate} points"
        return f"each layout and length calibrated with {points} of it, which are not compared"
    return "constants as they come"


def _why(read: Sequence[object], kept: Sequence[object], skipped: Iterable[Skipped]) -> str:
    if not read:
        return ": it has none"
    if not kept:
        return f": {len(read)} read, none of them asked for"
    first = next(iter(skipped))
    is_said = first.reason in set(Reason) and not first.message.startswith(first.reason)
    return f"; line {first.line}: {first.reason}{f': {first.message}' if is_said else ''}"
