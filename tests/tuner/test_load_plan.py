"""What is asked of a server: ranges, traces, prompts, arrivals."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.errors import MalformedError
from tuner.load_plan import in_ranges, poisson, read_prompts, read_trace


def test_lengths_are_drawn_from_their_ranges_ends_included() -> None:
    asked = in_ranges((3, 5), (2, 4), 200, seed=0)
    assert {a.input_tokens for a in asked} == {3, 4, 5}
    assert {a.output_tokens for a in asked} == {2, 3, 4}
    with pytest.raises(MalformedError):
        in_ranges((5, 3), (2, 4), 1, seed=0)


def test_poisson_arrivals_keep_their_rate() -> None:
    due_s = [a.due_s or 0.0 for a in poisson(in_ranges((3, 3), (2, 2), 4000, seed=0), 8.0, seed=1)]
    assert due_s == sorted(due_s)
    assert len(due_s) / due_s[-1] == pytest.approx(8.0, rel=0.1)


def test_a_trace_is_read_with_either_unit_and_starts_at_its_first_arrival(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 2500, "input_length": 7, "output_length": 3}\n'
        '{"timestamp": 1000, "input_length": 5, "output_length": 2}\n'
    )
    assert [(a.due_s, a.input_tokens, a.output_tokens) for a in read_trace(trace)] == [(0.0, 5, 2), (1.5, 7, 3)]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"input_tokens": 0, "output_tokens": 5}', ""])
def test_a_trace_that_is_none_is_refused_with_its_place(line: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(line + "\n")
    with pytest.raises(MalformedError, match=r"trace\.jsonl"):
        read_trace(trace)


def test_real_prompts_are_read_from_text_and_from_json_lines(tmp_path: Path) -> None:
    plain, lines = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    plain.write_text("one\n\ntwo\n")
    lines.write_text('{"prompt": "one", "output_tokens": 9}\n{"text": "two"}\n')
    assert [(a.text, a.output_tokens) for a in read_prompts(plain, 4)] == [("one", 4), ("two", 4)]
    assert [(a.text, a.output_tokens) for a in read_prompts(lines, 4)] == [("one", 9), ("two", 4)]
