"""The list of messages is whole, and none is empty or too short to say what to do."""

import re

import pytest

from tests.messages import listed

MESSAGES = listed()


def test_both_packages_have_messages():
    assert {file.split("/")[0] for file, *_ in MESSAGES} == {"sparsedl", "sparsedl_fl"}
    assert {kind for _, _, kind, _ in MESSAGES} >= {"ValueError", "TypeError", "ImportError", "UserWarning"}


@pytest.mark.parametrize("file", sorted({file for file, *_ in MESSAGES}))
def test_a_message_is_a_sentence(file):
    for _, line, _, text in (found for found in MESSAGES if found[0] == file):
        is_passed_on = re.fullmatch(r"\{[^{}]*\}( \| .*)?|\{.*\}", text)  # written where the expression is
        assert is_passed_on or len(re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^{}]*\}", "", text))) >= 2, (line, text)
        assert not re.search(r"\bsafe\b", text), (line, text)
