"""The Promela models hold in every state, and fail if any one of their precautions is removed.

AIOCHRONICLE_MODELS=all also runs the searches that take longer than a test should.
"""

import os
from pathlib import Path

import pytest
from models.spin import SpinMissingError, find_spin, search

ONE, TWO = ("READERS=1", "MESSAGES=1"), ("READERS=2", "MESSAGES=2")
WRITER_DIES = ("READERS=1", "MESSAGES=2", "WRITER_KILLS=1", "NET")
READER_DIES = ("READERS=1", "MESSAGES=2", "READER_KILLS=1")
HAND_OVER = "HAND_OVER=0"
WRITERS_DIE = ("READERS=1", "MESSAGES=1", "WRITER_KILLS=2", "NET")

HOLDING: dict[str, tuple[str, tuple[str, ...]]] = {
    "wake: two readers attach and sleep": ("wake", TWO),
    "wake: a reader found by watch and scan": ("wake", ("READERS=1", "MESSAGES=3", "TWICE")),
    "wake: a reader is killed": ("wake", READER_DIES),
    "wake: a writer is killed": ("wake", ("READERS=1", "MESSAGES=2", "WRITER_KILLS=1")),
    "wake: a writer is killed, with the net": ("wake", WRITER_DIES),
    "wake: one of two is left to the wake thread": ("wake", (*TWO, "HAND_OVER=1")),
    "wake: left to the wake thread, a reader is killed": ("wake", (*READER_DIES, HAND_OVER)),
    "wake: left to the wake thread, a writer is killed": ("wake", (*WRITER_DIES, HAND_OVER)),
    "roll: three segments": ("roll", ("MESSAGES=5",)),
    "roll: two writers end": ("roll", ("MESSAGES=3", "ENDS=2")),
    "roll: a reader that begins at the end": ("roll", ("MESSAGES=4", "FROM_END")),
    "roll: the position in the control block": ("roll", ("MESSAGES=3", "OBSERVER")),
    "slot: three commits": ("slot", ("COMMITS=3",)),
    "slot: killed twice": ("slot", ("KILLS=2",)),
    "retention: a reader is killed": ("retention", ()),
    "members: two of them sleep": ("members", ()),
    "members: three of them sleep": ("members", ("MEMBERS=3", "MESSAGES=2")),
    "group: a lease ends": ("group", ("KILLS=0", "NACKS=0")),
    "group: a member is killed": ("group", ("EXPIRIES=0", "NACKS=0")),
    "turns: a member is killed": ("turns", ("MESSAGES=2", "LATE", "KILLS=1")),
    "turns: a lease ends": ("turns", ("MESSAGES=2", "LATE", "EXPIRIES=1")),
    "turns: three queues": ("turns", ("QUEUES=3", "MEMBERS=1", "LATE")),
    "turns: three messages": ("turns", ()),
}
HOLDING_LONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "wake: both are killed": ("wake", (*ONE, "READER_KILLS=1", "WRITER_KILLS=1")),
    "wake: both are killed, with the net": ("wake", (*WRITER_DIES, "READER_KILLS=1")),
    "wake: both are killed, left to the wake thread": (
        "wake",
        (*ONE, "READER_KILLS=1", "WRITER_KILLS=1", HAND_OVER),
    ),
    "wake: both are left to the wake thread": ("wake", (*TWO, HAND_OVER)),
    "wake: writers are killed": ("wake", WRITERS_DIE),
    "wake: two readers, one is killed": ("wake", ("READERS=2", "MESSAGES=1", "READER_KILLS=1")),
    "roll: four segments, two writers end": ("roll", ("MESSAGES=6", "ENDS=2")),
    "slot: two kills and two beats": ("slot", ("COMMITS=3", "KILLS=2", "BEATS=2")),
    "group: a kill and a message given back": ("group", ("EXPIRIES=0",)),
    "turns: a kill and the end of a lease": (
        "turns",
        ("MESSAGES=2", "LATE", "KILLS=1", "EXPIRIES=1"),
    ),
    "turns: full windows and two keys": ("turns", ("KEYS=2", "LIMIT=1")),
    "turns: late messages": ("turns", ("LATE",)),
    "retention: two kills": ("retention", ("RECORDS=5", "PASSES=3", "KILLS=2")),
}

# The change, its setting, and (part of) the assertion that must fail; no other assertion may fail.
UNREAD, SKIPPED, MISSING = "read[r]==head", "==expected", "expected=="
BROKEN: dict[str, tuple[str, tuple[str, ...], str]] = {
    "ACK_WITHOUT_TOKEN": ("group", (), "holder[s]==me"),
    "CLAIM_WITHOUT_COMPARE": ("group", ("KILLS=0", "EXPIRIES=0", "NACKS=0"), "done[s]==0"),
    "MARK_WITHOUT_COMPARE": ("group", ("KILLS=0", "EXPIRIES=0", "NACKS=0"), "low<=to"),
    "NO_LAP": ("group", ("KILLS=0", "EXPIRIES=0", "NACKS=0"), "low==3"),
    "NO_LIMIT": ("group", ("KILLS=0", "EXPIRIES=0", "NACKS=0"), "low==3"),
    "HEAD_WITHOUT_DONE": ("turns", ("LATE",), "holder[m]"),
    "HEAD_WITHOUT_COMPARE": ("turns", ("LATE",), "holder[m]"),
    "turns CLAIM_WITHOUT_COMPARE": ("turns", ("MESSAGES=2",), "holder[m]"),
    "ONE_LOOK": ("turns", ("QUEUES=3", "MEMBERS=1", "LATE"), "time[m]<time[s]"),
    "NO_HORIZON": ("turns", ("KEYS=2", "LIMIT=1"), "time[m]<time[s]"),
    "COMMON_BIT_FIRST": ("members", (), "claimed==head"),
    "MEMBERS_BITS_FIRST": ("members", (), "claimed==head"),
    "NO_SECOND_LOOK_OF_MEMBER": ("members", (), "claimed==head"),
    "NO_BARRIER": ("wake", ONE, UNREAD),
    "NO_SECOND_LOOK": ("wake", ONE, UNREAD),
    "LOOK_BEFORE_RAISE": ("wake", ONE, UNREAD),
    "RAISE_WITHOUT_BARRIER": ("wake", ONE, UNREAD),
    "RAISE_NOT_ATOMIC": ("wake", ("READERS=2", "MESSAGES=1"), UNREAD),
    "LOAD_THEN_STORE": ("wake", TWO, UNREAD),
    "LOAD_ONLY": ("wake", ("READERS=1", "MESSAGES=2"), "asked["),
    "DRAIN_BEFORE_SLEEP": ("wake", ONE, UNREAD),
    "NO_RING_WITH_BIT": ("wake", ONE, UNREAD),
    "RING_BEFORE_BIT": ("wake", ONE, UNREAD),
    "BIT_BEFORE_SLEEPER": ("wake", ONE, UNREAD),
    "NUDGE_BEFORE_MARK": ("wake", (*ONE, HAND_OVER), UNREAD),
    "DRAIN_AFTER_MARKS": ("wake", (*TWO, HAND_OVER), UNREAD),
    "RESET_AFTER_ATTEND": ("wake", ONE, UNREAD),
    "SCAN_BEFORE_WATCH": ("wake", ONE, UNREAD),
    "KEEP_OLD_CONNECTION": ("wake", (*ONE, "READER_KILLS=1"), UNREAD),
    "ANY_CONNECTION_REPLACES": ("wake", (*ONE, "WRITER_KILLS=1"), UNREAD),
    "NO_RING_AT_END": ("wake", WRITER_DIES, UNREAD),
    "TRUST_UNSEEN_WRITER": ("wake", WRITER_DIES, UNREAD),
    "roll NO_SECOND_LOOK": ("roll", ("MESSAGES=3",), SKIPPED),
    "SEAL_BEFORE_RECORD": ("roll", ("MESSAGES=3",), SKIPPED),
    "SEAL_AFTER_RECORD": ("roll", ("MESSAGES=3",), MISSING),
    "SEAL_AFTER_POSITION": ("roll", ("MESSAGES=3", "FROM_END"), MISSING),
    "ENTER_SPARE": ("roll", ("MESSAGES=3",), MISSING),
    "JUDGE_THEN_OPEN": ("roll", ("MESSAGES=3",), MISSING),
    "OPEN_BEFORE_SEAL": ("roll", ("MESSAGES=3",), MISSING),
    "REMOVE_EMPTY_END": ("roll", ("MESSAGES=3",), MISSING),
    "NO_SECOND_TRY": ("roll", ("MESSAGES=4",), "entered"),
    "NO_GENERATION": ("roll", ("MESSAGES=3", "OBSERVER"), "owner==segment"),
    "OVERWRITE_VALID": ("slot", (), "slot[newest].checksum=="),
    "NO_MUTEX": ("slot", (), "==returned"),
    "NO_CHECKSUM": ("slot", (), "==returned"),
    "NO_SECOND_READ": ("slot", (), "a.checksum=="),
    "NO_WIPE": ("slot", (), "<=attempted"),
    "REMOVE_NEEDED_TOO": ("retention", (), "excused"),
    "USE_READ_POSITION": ("retention", (), "excused"),
    "COMMIT_BEFORE_HANDING_OVER": ("retention", (), "<=handed_over"),
    "LOSE_NEW_NAME": ("retention", (), "0"),
}
BROKEN_LONG: dict[str, tuple[str, tuple[str, ...], str]] = {
    "TRUST_ANY_WRITER": ("wake", WRITERS_DIE, UNREAD),
    "KEEP_BIT_AT_END": ("wake", WRITERS_DIE, UNREAD),
}

if os.environ.get("AIOCHRONICLE_MODELS") == "all":
    HOLDING |= HOLDING_LONG
    BROKEN |= BROKEN_LONG


@pytest.fixture(scope="module", autouse=True)
def spin() -> str:
    try:
        return find_spin()
    except SpinMissingError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", HOLDING)
def test_model_holds_in_every_state(case: str, tmp_path: Path) -> None:
    model, defines = HOLDING[case]
    verdict = search(model, defines, tmp_path)
    assert verdict.violation is None, verdict.trace
    assert verdict.states > 1_000  # a model without any steps would hold, too


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", BROKEN)
def test_model_finds_what_goes_wrong_without(mutation: str, tmp_path: Path) -> None:
    model, defines, broken = BROKEN[mutation]
    verdict = search(model, (*defines, mutation.split()[-1]), tmp_path)
    assert verdict.violation is not None, f"{verdict.states} states, and all is well"
    assert broken in verdict.violation


def test_each_mutation_is_in_its_model() -> None:
    for mutation, (model, _, _) in (BROKEN | BROKEN_LONG).items():
        text = (Path(__file__).parent / "models" / f"{model}.pml").read_text()
        assert mutation.split()[-1] in text, mutation
