"""Every promise of SECURITY.md names a test, and that test exists."""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PROOF = re.compile(r"`([\w/]+\.py)::(\w*)`")


def promises() -> list[tuple[str, str]]:
    """Return the rows of the tables below "What the code promises": promise and proof."""
    text = (PROJECT / "SECURITY.md").read_text()
    text = text[text.index("## What the code promises") :]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return [(promise, proof) for promise, proof in rows if promise != "promise"]


@pytest.mark.parametrize(("promise", "proof"), promises())
def test_a_promise_has_a_test(promise: str, proof: str) -> None:
    named = PROOF.findall(proof)
    assert named, f"no test is named for: {promise}"
    for file, function in named:
        content = (PROJECT / "tests" / file).read_text()
        assert f"def {function or 'test_'}" in content, f"{file}::{function} is not there"


def test_there_are_promises() -> None:
    assert len(promises()) > 25
