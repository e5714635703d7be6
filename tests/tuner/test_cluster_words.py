from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.catalogue import gpu_keys, load_gpu, parse_cluster
from search_spaces.errors import UserError
from search_spaces.hardware import Cluster, CollectiveOp, Fabric, Gpu, LinkKind, MeasuredCurve, Route
from tuner.cluster_file import cluster_in, document_of, refuse_to_replace, text_of, write_document
from tuner.cluster_words import cluster_of

GPU = {**asdict(load_gpu("h200")), "key": "h200-half", "memory_bytes": load_gpu("h200").memory_bytes // 2}


def written(folder: Path, content: Any) -> str:
    path = folder / "cluster.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_notation_is_read_as_ever() -> None:
    assert cluster_of("2x8xh200") == parse_cluster("2x8xh200")


def test_a_file_may_name_a_gpu_of_the_catalogue(tmp_path: Path) -> None:
    assert cluster_of(written(tmp_path, {"gpu": "H200", "gpus_per_node": 8, "num_nodes": 2})) == cluster_of("2x8xh200")


def test_a_file_may_describe_its_gpu(tmp_path: Path) -> None:
    cluster = cluster_of(written(tmp_path, {"gpu": GPU, "gpus_per_node": 4}))
    assert (cluster.name, cluster.num_gpus) == ("4xh200-half", 4)
    assert cluster.gpu.memory_bytes == load_gpu("h200").memory_bytes // 2
    assert cluster.gpu.link is load_gpu("h200").link


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "not a JSON object"),
        ({"gpu": "h200"}, "gpus_per_node is a count"),
        ({"gpu": "h200", "gpus_per_node": True}, "gpus_per_node is a count"),
        ({"gpu": "h200", "gpus_per_node": 512}, "at most 256 GPUs"),
        ({"gpu": "h200", "gpus_per_node": 8, "nodes": 2}, "did you mean num_nodes"),
        ({"gpu": 3, "gpus_per_node": 8}, "gpu is a name"),
        ({"gpu": "h2", "gpus_per_node": 8}, "unknown GPU"),
        ({"gpu": {**GPU, "link": "rope"}, "gpus_per_node": 8}, "link is one of"),
        ({"gpu": {**GPU, "sm": "90"}, "gpus_per_node": 8}, "sm is a count"),
        ({"gpu": {**GPU, "bf16_flop_per_s": None}, "gpus_per_node": 8}, "bf16_flop_per_s is a number"),
    ],
)
def test_what_a_file_lacks_is_said_in_one_line(content: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as refused:
        cluster_of(written(tmp_path, content))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_told_with_the_notation() -> None:
    with pytest.raises(UserError, match="no such file; a cluster is also written"):
        cluster_of("./none.json")


CURVE = {
    "op": "all_reduce",
    "backend": "nccl",
    "num_ranks": 8,
    "size_bytes": [1024, 2048],
    "seconds": [1.1e-5, 1.2e-5],
}
FABRIC = {
    "source": "tune probe",
    "route": "pcie_sockets",
    "has_peer_access": False,
    "nic_bytes_per_s": 5e10,
    "curves": [CURVE],
}
MEASURED = {"gpu": "h200", "gpus_per_node": 8, "fabric": FABRIC}


def measured(**other: Any) -> dict[str, Any]:
    return {**MEASURED, "fabric": {**FABRIC, **other}}


def with_curve(**other: Any) -> dict[str, Any]:
    return measured(curves=[{**CURVE, **other}])


def test_a_file_may_hold_what_was_measured(tmp_path: Path) -> None:
    cluster = cluster_of(written(tmp_path, {**MEASURED, "probed": {"anything": [1]}}))
    assert cluster.name == "8xh200"
    assert cluster.fabric == Fabric(
        source="tune probe",
        route=Route.SOCKETS,
        has_peer_access=False,
        nic_bytes_per_s=5e10,
        curves=(
            MeasuredCurve(
                op=CollectiveOp.ALL_REDUCE,
                backend="nccl",
                num_ranks=8,
                size_bytes=(1024, 2048),
                seconds=(1.1e-5, 1.2e-5),
            ),
        ),
    )


def test_of_what_was_measured_only_its_source_has_to_be_said(tmp_path: Path) -> None:
    assert cluster_of(written(tmp_path, {**MEASURED, "fabric": {"source": "by hand"}})).fabric == Fabric(
        source="by hand"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**MEASURED, "fabric": 3}, r"fabric is an object with source, .* \(got 3\)"),
        ({**MEASURED, "fabric": {}}, r"fabric.source says who found it, in words \(got None\)"),
        (measured(root="sys"), "unknown key in .* fabric 'root'; did you mean route"),
        (measured(route="sys"), "unknown .*fabric.route 'sys'. Known: nvlink, pcie_root, pcie_sockets, pcie_switch"),
        (measured(has_peer_access="yes"), r"has_peer_access is true, false or null \(got 'yes'\)"),
        (measured(nic_bytes_per_s=0), r"nic_bytes_per_s is a number above 0.*got 0"),
        (measured(curves={}), r"curves is a list \(got {}\)"),
        (measured(curves=[[]]), r"curves\[0\] is an object with op, "),
        (measured(curves=[CURVE, CURVE]), r"curves\[1\] is of the same op, backend and num_ranks as curves\[0\]"),
        (with_curve(op="all_dance"), r"curves\[0\].op 'all_dance'.*Known: all_gather, all_reduce"),
        (with_curve(op=7), r"curves\[0\].op '7'"),
        (with_curve(sizes=[1]), r"unknown key in .*curves\[0\] 'sizes'"),
        (with_curve(backend=""), r"curves\[0\].backend is a word such as nccl"),
        (with_curve(num_ranks=16), r"num_ranks is a count from 2 to the 8 GPUs of the cluster \(got 16\)"),
        (with_curve(num_ranks=True), r"num_ranks is a count from 2"),
        (with_curve(size_bytes=[1024]), r"a latency for each size \(got 1 size_bytes and 2 seconds\)"),
        (with_curve(size_bytes=[], seconds=[]), r"size_bytes is a list of numbers, one at least"),
        (with_curve(seconds="fast"), r"seconds is a list of numbers"),
        (with_curve(size_bytes=[2048, 2048]), r"size_bytes rise, but 2048 is followed by 2048"),
        (with_curve(size_bytes=[1024, 2048.0]), r"size_bytes\[1\] is a count of at least 1.*got 2048.0"),
        (with_curve(seconds=[1e-5, 0]), r"seconds\[1\] is a number above 0.*got 0"),
        (with_curve(seconds=[1e-5, float("nan")]), r"seconds\[1\] is a number above 0.*got nan"),
        (with_curve(seconds=[1e-5, float("inf")]), r"seconds\[1\] is a number above 0.*got inf"),
        (with_curve(seconds=[True, 1e-5]), r"seconds\[0\] is a number above 0.*got True"),
        (with_curve(seconds=[10**400, 1e-5]), r"seconds\[0\] is a number above 0"),
        (with_curve(seconds=[1e-5, 1e300]), r"seconds\[1\] is a number above 0, from 1e-09 to 10000"),
        (with_curve(size_bytes=[1024, 10**400]), r"size_bytes\[1\] is a count of at least 1, at most 2\*\*50"),
    ],
)
def test_what_is_wrong_with_a_measurement_is_said_in_one_line(content: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as refused:
        cluster_of(written(tmp_path, content))
    assert "\n" not in str(refused.value)
    assert "cluster.json" in str(refused.value)


POSITIVE = st.floats(min_value=1e6, max_value=1e20)
SECONDS = st.floats(min_value=1e-9, max_value=1e4)
NAMES = st.text(min_size=1, max_size=12)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    rates = st.none() | POSITIVE
    gpu = (
        draw(st.sampled_from([load_gpu(key) for key in gpu_keys()]))
        if draw(st.booleans())
        else Gpu(
            key=draw(NAMES),
            name=draw(NAMES),
            sm=draw(st.integers(1, 200)),
            memory_bytes=draw(st.integers(1, 2**50)),
            memory_bytes_per_s=draw(POSITIVE),
            bf16_flop_per_s=draw(POSITIVE),
            fp8_flop_per_s=draw(rates),
            fp4_flop_per_s=draw(rates),
            link=draw(st.sampled_from(LinkKind)),
            link_bytes_per_s=draw(POSITIVE),
            source=draw(NAMES),
        )
    )
    per_node, nodes = draw(st.integers(1, 16)), draw(st.integers(1, 4))
    num_gpus = per_node * nodes
    kinds = st.tuples(
        st.sampled_from(CollectiveOp), st.sampled_from(["nccl", "custom"]), st.integers(2, max(num_gpus, 2))
    )
    curves = []
    for op, backend, num_ranks in draw(st.lists(kinds, max_size=4, unique=True)) if num_gpus > 1 else []:
        sizes = sorted(draw(st.sets(st.integers(1, 2**40), min_size=1, max_size=5)))
        seconds = draw(st.lists(SECONDS, min_size=len(sizes), max_size=len(sizes)))
        curves.append(
            MeasuredCurve(op=op, backend=backend, num_ranks=num_ranks, size_bytes=tuple(sizes), seconds=tuple(seconds))
        )
    fabric = Fabric(
        source=draw(NAMES),
        route=draw(st.none() | st.sampled_from(Route)),
        has_peer_access=draw(st.none() | st.booleans()),
        nic_bytes_per_s=draw(rates),
        curves=tuple(curves),
    )
    return Cluster(gpu=gpu, gpus_per_node=per_node, num_nodes=nodes, fabric=draw(st.none() | st.just(fabric)))


@given(clusters())
def test_what_is_saved_is_read_as_it_was(cluster: Cluster) -> None:
    assert cluster_in(json.loads(text_of(document_of(cluster))), "cluster.json") == cluster


def test_a_file_is_written_whole_and_replaces_none_unasked(tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    cluster = cluster_of("8xh200")
    write_document(document_of(cluster), path, may_replace=False)
    assert cluster_of(str(path)) == cluster
    assert path.stat().st_mode & 0o444 == 0o444
    with pytest.raises(UserError, match="exists already; --force replaces it"):
        write_document({}, path, may_replace=False)
    assert cluster_of(str(path)) == cluster
    write_document(document_of(cluster_of("4xh200")), path, may_replace=True)
    assert cluster_of(str(path)).num_gpus == 4
    assert [each.name for each in tmp_path.iterdir()] == ["box.json"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("box", "ends with .json"), ("none/box.json", "there is no folder"), ("folder.json", "is a folder")],
)
def test_a_place_where_no_file_can_be_is_told(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UserError, match=said):
        refuse_to_replace(tmp_path / name, may_replace=True)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("memory_bytes_per_s", 1e308, "is a number above 0, from 1e"),
        ("memory_bytes_per_s", 5e-324, "is a number above 0, from 1e"),
        ("bf16_flop_per_s", 1e-300, "is a number above 0, from 1e"),
        ("link_bytes_per_s", 1e-300, "is a number above 0, from 1e"),
        ("memory_bytes", 10**400, "at most 2..50 .got 1000000000"),
        ("memory_bytes", 10**18, "at most 2..50"),
    ],
)
def test_a_rate_or_size_of_no_machine_is_refused(tmp_path, name, value, said):
    path = tmp_path / "box.json"
    path.write_text(json.dumps({"gpu": {**GPU, name: value}, "gpus_per_node": 8}))
    with pytest.raises(UserError, match=said) as refused:
        cluster_of(str(path))
    assert len(str(refused.value)) < 300
