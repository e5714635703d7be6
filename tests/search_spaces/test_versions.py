from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import MalformedError
from search_spaces.sglang.versions import NEWEST, OLDEST, EngineVersion

KNOWN = st.builds(EngineVersion, st.just(0), st.just(5), st.integers(OLDEST.patch, NEWEST.patch))


@given(KNOWN)
def test_a_version_reads_back(version):
    assert EngineVersion.parse(str(version)) == version
    assert EngineVersion.parse(f"v{version}.post1") == version


@given(KNOWN, KNOWN)
def test_versions_are_ordered_by_number_not_by_text(one, other):
    assert (one < other) == (one.patch < other.patch)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("0.5.24", "0.5.23"),
        ("0.5.6.post2", "0.5.9"),
        ("0.5.10rc0", "0.5.10"),
        ("0.5.24.dev12+g1a2b", "0.5.23"),
        ("main", "0.5.23"),
        ("Latest", "0.5.23"),
    ],
)
def test_what_is_no_known_release_is_answered_with_the_nearest(text, nearest):
    with pytest.raises(MalformedError, match=f"the nearest is {nearest}$"):
        EngineVersion.parse(text)


@pytest.mark.parametrize("text", ["", "latest", "0.5", "0.5.8", "0.5.24", "1.0.0", "0.5.x", "0.5.-9"])
def test_what_is_no_known_version_is_refused_with_an_example_or_the_range(text):
    with pytest.raises(MalformedError, match=r"0\.5\.23"):
        EngineVersion.parse(text)
