"""``dead``, and groups in ``ls`` and ``readers``."""

from contextlib import suppress
from pathlib import Path

import pytest
from helpers.users import STRANGER, run_as

from aiochronicle import list_dead_letters, open_group, open_reader, open_writer
from cli.running import aioc


@pytest.fixture
def dead(tmp_path: Path) -> Path:
    """A dead-letter queue with three messages of the queue ``orders``."""
    with open_writer(tmp_path / "orders") as writer:
        for number in range(4):
            writer.append(b"order %d" % number)
    with open_group(
        tmp_path / "orders", "workers", max_deliver=1, dead_letter=tmp_path / "dead", retry_s=0
    ) as group:
        while (delivery := group.poll()) is not None:
            if delivery.seq < 3:
                with suppress(ValueError), delivery:
                    raise ValueError(f"no \x1b[2J such {delivery.seq}")
            else:
                delivery.ack()
    return tmp_path / "dead"


def payloads(queue: Path) -> list[bytes]:
    with open_reader(queue, start="first") as reader:
        return [message.payload for message in reader]


def test_list(dead: Path) -> None:
    done = aioc("dead", dead)
    assert done.status == 0
    assert len(done.out.splitlines()) == 4
    assert "no \\x1b[2J such 0" in done.out
    letters = aioc("dead", "list", dead, "--json").json
    assert [one["message_seq"] for one in letters] == [0, 1, 2]
    assert letters[0]["attempts"] == 1
    assert letters[0]["group"] == "workers"


def test_a_listing_writes_nothing(dead: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in dead.rglob("*") if path.is_file()}

    before = contents()
    assert len(aioc("dead", dead, "--json").json) == 3
    assert contents() == before
    aioc("dead", "drop", dead, "1")
    before = contents()
    assert [one["seq"] for one in aioc("dead", dead, "--json").json] == [0, 2]
    assert contents() == before


def test_a_listing_waits_for_nobody_and_needs_read_permission_only(dead: Path) -> None:
    with open_group(dead, "dead", lease_s=600, max_in_flight=65536, retry_s=0) as group:
        held = group.take_batch(2)  # another process is retrying them
        for place in (dead, *dead.rglob("*"), *dead.parents[:3]):
            place.chmod(0o755 if place.is_dir() else 0o644)
        assert run_as(STRANGER, lambda: [seq for seq, _ in list_dead_letters(dead)]) == [0, 1, 2]
        held[0].ack()
        assert [seq for seq, _ in list_dead_letters(dead)] == [1, 2]
        assert group.info().in_flight == 1


def test_retry_and_drop(dead: Path, tmp_path: Path) -> None:
    first, second, third = (one["seq"] for one in aioc("dead", dead, "--json").json)
    assert aioc("dead", "retry", dead, str(first)).out == "1 retried\n"
    assert payloads(tmp_path / "orders")[-1] == b"order 0"
    assert [one["seq"] for one in aioc("dead", dead, "--json").json] == [second, third]
    assert aioc("dead", "drop", dead, str(second), "--json").json["seqs"] == [second]
    assert aioc("dead", "retry", dead, "--all").out == "1 retried\n"
    assert payloads(tmp_path / "orders")[-1] == b"order 2"
    assert "no dead letters" in aioc("dead", dead).out


def test_retry_into_another_queue(dead: Path, tmp_path: Path) -> None:
    open_writer(tmp_path / "other").close()
    assert aioc("dead", "retry", dead, "--all", "--to", tmp_path / "other").status == 0
    assert payloads(tmp_path / "other") == [b"order 0", b"order 1", b"order 2"]


def test_retry_waits_for_no_writer(dead: Path, tmp_path: Path) -> None:
    with open_writer(tmp_path / "orders"):
        done = aioc("dead", "retry", dead, "--all")
    assert done.status == 4
    assert len(aioc("dead", dead, "--json").json) == 3


def test_mistakes(dead: Path, tmp_path: Path) -> None:
    for command in ("retry", "drop"):
        assert aioc("dead", command, dead).status == 2
        assert aioc("dead", command, dead, "1", "--all").status == 2
    assert aioc("dead", tmp_path / "none").status == 3
    done = aioc("dead", tmp_path / "orders")
    assert done.status == 3
    assert "no dead-letter queue" in done.err
    assert not (tmp_path / "orders" / "readers" / "dead.meta").exists()
    done = aioc("dead", "drop", dead, "99")
    assert done.status == 3
    assert "no dead letter 99" in done.err


def test_groups_are_in_ls_and_readers(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a") as writer:
        writer.append_many([b"x"] * 5)
    open_writer(tmp_path / "b").close()
    with open_group(tmp_path / "a", "workers") as group:
        with open_group(tmp_path / "a", "workers"):
            found = aioc("who", tmp_path / "a", "--json").json
            assert [(one["role"], one["name"]) for one in found if one["state"] == "open"] == [
                ("member", "workers")
            ] * 2
        taken = group.take_batch(2)
        entry, other = aioc("ls", tmp_path, "--json").json
        assert (entry["groups"], entry["group_pending"], entry["group_in_flight"]) == (1, 5, 2)
        assert other["groups"] == 0
        assert "IN FLIGHT" in aioc("ls", tmp_path).out
        assert "2 of 5" in aioc("ls", tmp_path).out
        shown = aioc("readers", tmp_path / "a").out
        assert "group workers: 5 pending" in shown
        assert "2 in flight" in shown
        (reader,) = aioc("readers", tmp_path / "a", "--json").json
        assert reader["group"]["members"][0]["in_flight"] == 2
        while taken:
            taken.pop().ack()
        for delivery in group.take_batch(3):
            delivery.ack()
    assert "group workers: 0 pending; 0 in flight" in aioc("readers", tmp_path / "a").out
    assert "IN FLIGHT" not in aioc("ls", tmp_path / "b").out


def test_doctor_finds_replies_that_nobody_needs(tmp_path: Path) -> None:
    for name in ("orders", "orders.replies"):
        (tmp_path / name).mkdir()
    for name in ("orders/alive", "orders.replies/alive", "orders.replies/gone"):
        open_writer(tmp_path / name).close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "READY").write_text("{}")
    found = aioc("doctor", tmp_path, "--json").json
    orphans = [one for one in found if one["check"] == "orphaned-replies"]
    assert [one["subject"] for one in orphans] == [str(tmp_path / "orders.replies" / "gone")]
    half = [one for one in found if one["check"] == "half-made"]
    assert [one["subject"] for one in half] == [str(tmp_path / "empty")]
    assert all(one["remedy"] for one in found)
