"""What is asked of a server: ranges, traces, prompts, arrivals."""

from __future__ import annotations

import os
from collections.abc import Callable
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
    with pytest.raises(MalformedError, match="999999999"):
        in_ranges((5, 10**22), (2, 4), 1, seed=0)


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


@pytest.mark.parametrize(
    "line",
    [
        f'{{"arrival_s": 1{"0" * 400}, "input_tokens": 5, "output_tokens": 5}}',
        f'{{"timestamp": 1{"0" * 5000}, "input_tokens": 5, "output_tokens": 5}}',
        '{"arrival_s": 1e400, "input_tokens": 5, "output_tokens": 5}',
        '{"arrival_s": NaN, "input_tokens": 5, "output_tokens": 5}',
        f'{{"input_tokens": 1{"0" * 400}, "output_tokens": 5}}',
        '{"input_tokens": 1000000000, "output_tokens": 5}',
        f'{{"input_tokens": {"[" * 900}{"]" * 900}, "output_tokens": 5}}',
        "[" * 100_000,
    ],
    ids=["arrival", "milliseconds", "infinity", "nan", "length", "ten digits", "nested", "nested without end"],
)
def test_numbers_beyond_all_machines_are_refused_with_their_line_in_a_short_sentence(line: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival_s": 1, "input_tokens": 5, "output_tokens": 5}\n' + line + "\n")
    with pytest.raises(MalformedError, match=r"trace\.jsonl:2: ") as told:
        read_trace(trace)
    assert len(str(told.value)) < 300 + len(str(trace))


def test_the_first_line_that_differs_in_having_an_arrival_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with_it, without = (
        '{"arrival_s": 1, "input_tokens": 5, "output_tokens": 5}',
        '{"input_tokens": 5, "output_tokens": 5}',
    )
    trace.write_text(f"{with_it}\n\n{without}\n")
    with pytest.raises(MalformedError, match=r"trace\.jsonl:3: no arrival .*trace\.jsonl:1 has"):
        read_trace(trace)
    trace.write_text(f"{without}\n{with_it}\n")
    with pytest.raises(MalformedError, match=r"trace\.jsonl:1: no arrival .*trace\.jsonl:2 has"):
        read_trace(trace)


@pytest.mark.parametrize("read", [read_trace, lambda path: read_prompts(path, 8)])
def test_a_file_that_no_memory_would_hold_is_not_read(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    with path.open("wb") as file:
        file.truncate(2**40)  # of holes alone
    with pytest.raises(MalformedError, match=r"p\.jsonl is larger than 256 MiB"):
        read(path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "absent"])
def test_what_is_no_plain_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    for read in (read_trace, lambda p: read_prompts(p, 4)):
        with pytest.raises(MalformedError, match=r"trace\.jsonl cannot be read"):
            read(path)


def test_bytes_that_are_no_utf_8_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"one\ntw\xff\n")
    with pytest.raises(MalformedError, match=r"prompts\.txt:2: no UTF-8"):
        read_prompts(path, 4)


def test_lines_end_with_a_line_feed_alone_and_a_byte_order_mark_is_none_of_the_text(tmp_path: Path) -> None:
    plain, lines, trace = tmp_path / "p.txt", tmp_path / "p.JSONL", tmp_path / "t.jsonl"
    odd = "a\fb\u2028c\u0085d\x1ce\rf"
    plain.write_bytes(f"\ufeff{odd}\r\ntwo\n".encode())
    assert [a.text for a in read_prompts(plain, 4)] == [odd, "two"]
    lines.write_bytes('\ufeff{"prompt": "a\u2028b"}\r\n'.encode())
    assert [a.text for a in read_prompts(lines, 4)] == ["a\u2028b"]
    trace.write_bytes('\ufeff{"input_tokens": 5, "output_tokens": 5, "of": "a\u2028b"}\n'.encode())
    assert [a.input_tokens for a in read_trace(trace)] == [5]


def test_half_of_a_surrogate_pair_is_no_prompt(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine \\ud83d\\ude00"}\n{"prompt": "a\\ud800b"}\n')
    with pytest.raises(MalformedError, match=r"p\.jsonl:2: half of a surrogate pair at character 2"):
        read_prompts(path, 4)


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
