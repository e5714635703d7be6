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


@pytest.mark.parametrize("text", ["", "latest", "0.5", "0.5.8", "0.5.24", "1.0.0", "0.5.x", "0.5.-9"])
def test_what_is_no_known_version_is_refused_with_an_example_or_the_range(text):
    with pytest.raises(MalformedError, match=r"0\.5\.23"):
        EngineVersion.parse(text)
