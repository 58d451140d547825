"""Threads may decode a type for the first time at once. With msgspec alone, that fails."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import aiochronicle

# The annotation of the inner type is a call. It blocks the thread that describes the outer type for msgspec
# until the second thread has had its chance to decode it.
HELD_UP = """
import os, sys, threading
import msgspec
from aiochronicle import Codec

described, done = threading.Event(), threading.Event()

def hold_up():
    described.set()
    done.wait(0.3)
    return int

class Inner(msgspec.Struct):
    quantity: "hold_up()"

class Outer(msgspec.Struct):
    inner: Inner

def decode():
    codec = Codec(Outer, "json")
    return codec.decode(b'{"inner": {"quantity": 1}}')
"""
IN_A_THREAD = """
def second():
    described.wait()
    decoded.append(decode())
    done.set()

decoded = []
thread = threading.Thread(target=second)
thread.start()
decoded.append(decode())
thread.join()
assert decoded == [Outer(Inner(1))] * 2
"""
IN_A_CHILD = """
thread = threading.Thread(target=decode)
thread.start()
described.wait()
child = os.fork()
if child == 0:
    os._exit(0 if decode() == Outer(Inner(1)) else 1)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("second_use", [IN_A_THREAD, IN_A_CHILD], ids=["thread", "child"])
@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_type_may_be_used_while_it_is_described(second_use: str, form: str) -> None:
    program = HELD_UP + second_use
    if form == "msgpack":
        program = program.replace('"json"', '"msgpack"')
        program = program.replace(
            """b'{"inner": {"quantity": 1}}'""", "codec.encode(Outer(Inner(1)))"
        )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def _decoded_types(tree: ast.Module) -> set[str]:
    """Return the names that are passed to msgspec as types to decode or convert to."""
    names = set[str]()
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        if ast.unparse(call.func) == "parse_json":
            names |= {value.id for value in call.args[1:] if isinstance(value, ast.Name)}
        if not isinstance(call.func, ast.Attribute):
            continue
        if not ast.unparse(call.func).startswith("msgspec."):
            continue
        given = [word.value for word in call.keywords if word.arg == "type"]
        if call.func.attr == "Decoder":
            given += call.args[:1]
        elif call.func.attr == "convert":
            given += call.args[1:2]
        names |= {value.id for value in given if isinstance(value, ast.Name)}
    return names


def test_every_type_of_ours_that_is_decoded_is_prepared() -> None:
    package = Path(aiochronicle.__file__).parent
    trees = [ast.parse(file.read_text()) for file in package.rglob("*.py")]
    decoded = set[str]().union(*map(_decoded_types, trees))
    assert {"_Schema", "Ready", "TopicSettings", "Manifest"} <= decoded  # this test can see them
    unprepared = [
        node.name
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and node.name in decoded
        and "msgspec.Struct" in map(ast.unparse, node.bases)
        and "prepared" not in map(ast.unparse, node.decorator_list)
    ]
    assert unprepared == []
