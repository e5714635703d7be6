from __future__ import annotations

from search_spaces.hardware import CollectiveOp, MeasuredCurve
from tuner.probe_text import lines_of_curves


def curve(*seconds: float) -> MeasuredCurve:
    sizes = tuple(1024 << i for i in range(len(seconds)))
    return MeasuredCurve(
        op=CollectiveOp.ALL_REDUCE, backend="nccl", num_ranks=8, size_bytes=sizes, seconds=tuple(seconds)
    )


def test_a_table_of_few_sizes_shows_them_all_and_one_of_many_says_how_many_it_leaves_out() -> None:
    few = lines_of_curves([curve(1e-5, 2e-5, 3e-5)], "GPUs")
    assert [line.split() for line in few] == [
        ["microseconds", "1", "KiB", "2", "KiB", "4", "KiB"],
        ["all_reduce", "(nccl),", "8", "GPUs", "10.0", "20.0", "30.0"],
    ]
    header, row, left_out = lines_of_curves([curve(*[1e-5] * 13)], "GPUs")
    assert header.split()[1::2] == ["1", "16", "256", "4"]
    assert len(row.split()) == 4 + 4
    assert left_out == "(4 of 13 sizes; --save and --json keep all)"


def test_all_times_of_a_table_have_one_unit_by_the_longest() -> None:
    for longest_s, unit, shown in (
        (0.123456, "microseconds", "123,456"),
        (1.5, "milliseconds", "1,500"),
        (89.2, "seconds", "89.2"),
    ):
        header, row = lines_of_curves([curve(0.02, longest_s)], "ranks")
        assert header.split()[0] == unit
        assert row.split()[-1] == shown
        assert len(header) == len(row)
