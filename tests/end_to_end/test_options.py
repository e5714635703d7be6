"""The table of options against the parser of the SGLang that is installed."""

from __future__ import annotations

import json

import pytest

from search_spaces.sglang.versions import NEWEST
from tests.engine_support.options_table import TABLE, parser_of

pytestmark = pytest.mark.engine


def test_the_table_has_the_options_of_the_installed_release(engine_python):
    table = json.loads(TABLE.read_text())
    written = [table["options"][number] for number in table["releases"][str(NEWEST)]]
    assert parser_of(engine_python) == written
