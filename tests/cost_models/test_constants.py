"""What the page on the theory says of the constants is what they are."""

from __future__ import annotations

import re
from pathlib import Path

from cost_models.constants import DEFAULT, PRIOR, SPREAD

PAGE = Path(__file__).parents[2] / "docs" / "cost_model.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<value>[\d.e-]+) \| (?P<spread>[\d.]+) \|", re.MULTILINE)


def test_the_page_names_each_fitted_constant_with_its_value_and_spread():
    said = {row["name"]: (float(row["value"]), float(row["spread"])) for row in ROW.finditer(PAGE.read_text())}
    assert said == {name: (getattr(DEFAULT, name), spread) for name, spread in SPREAD.items()}


def test_only_fitted_constants_have_a_prior_of_their_own():
    for name in set(type(DEFAULT).__dataclass_fields__) - set(SPREAD):
        assert getattr(PRIOR, name) == getattr(DEFAULT, name), name
