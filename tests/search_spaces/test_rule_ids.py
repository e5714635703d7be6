from __future__ import annotations

import shlex
from itertools import pairwise

import pytest

from search_spaces.sglang.flags import FlagError, from_argv
from search_spaces.sglang.rule_ids import FLAG_RULES, RULES_OF_TOPIC, topics_of
from search_spaces.sglang.rules import RULES

MEMORY = {"memory.weights", "memory.kv_pool", "memory.graphs"}


def test_every_rule_that_a_topic_names_exists():
    known = {rule.id for rule in RULES} | FLAG_RULES | MEMORY
    assert {rule for rules in RULES_OF_TOPIC.values() for rule in rules} <= known


def test_rules_of_one_name_are_the_same_rule_in_different_versions():
    spans: dict[str, list] = {}
    for rule in RULES:
        spans.setdefault(rule.id, []).append((rule.since, rule.until))
    for known in spans.values():
        ordered = sorted(known)
        assert all(before[1] < after[0] for before, after in pairwise(ordered))


def test_a_rules_topics_can_be_looked_up():
    assert topics_of("moe_dp.is_attn_cp") == ("cp.moe_dp", "moe_dp.alone")
    assert topics_of("no.such_rule") == ()


def test_every_flag_error_is_one_of_the_listed_rules():
    for words in ("--pp 2", "--nonsense 3", "--tp eight", "--tp"):
        with pytest.raises(FlagError) as refused:
            from_argv(shlex.split(words))
        assert refused.value.rule in FLAG_RULES
