"""Which words are SGLang's. The table is taken from the argument parser of sglang 0.5.23."""

from __future__ import annotations

import pytest

from tuner.simulator.engine_options import OptionError, check_options


@pytest.mark.parametrize(
    "words",
    [
        ("--trust-remote-code", "--log-level", "info"),
        ("--log-level=info",),
        ("--cuda-graph-bs-decode", "1", "2", "4", "--trust-remote-code"),
        ("--model-checksum", "--trust-remote-code"),
        ("--trust-remote",),  # a beginning that only one option has
    ],
)
def test_words_of_the_engine_pass(words):
    check_options(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--warp-speed", "9"), "unrecognized arguments: --warp-speed 9"),
        (("stray",), "unrecognized arguments: stray"),
        (("--log-level",), "argument --log-level: expected one argument"),
        (("--log-level", "--trust-remote-code"), "argument --log-level: expected one argument"),
        (("--trust-remote-code=yes",), "argument --trust-remote-code: ignored explicit argument 'yes'"),
        (("--cuda-graph-bs", "1"), "ambiguous option: --cuda-graph-bs could match"),
        # Gone since 0.5.14.
        (("--enable-piecewise-cuda-graph",), "unrecognized arguments: --enable-piecewise-cuda-graph"),
    ],
)
def test_other_words_are_refused_as_argparse_would(words, message):
    with pytest.raises(OptionError, match=message.replace("'", ".")):
        check_options(words)
