"""The monitor's page, stream, metrics and health, requested over HTTP."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli.running import started
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from aiochronicle import open_group, open_reader, open_writer
from monitor.processes import READER, WRITER, program, until
from monitor.serving import ask, monitor, stream

TOKEN = "0123456789abcdef-secret"
HOSTILE = "<img src=x onerror=alert(1)>\"'\\"


class Item(msgspec.Struct):
    symbol: str
    price: float


def frames(url: str, path: str = "/events") -> Any:
    """Yield the events with their decoded data."""
    for name, data in stream(url, path):
        yield name, msgspec.json.decode(data)


def first(url: str, wanted: str, path: str = "/events") -> Any:
    events = frames(url, path)
    found = next(data for name, data in events if name == wanted)
    events.close()
    return found


def samples(text: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_frames_tell_of_queues_writers_and_readers(tmp_path: Path) -> None:
    with (
        program(WRITER, tmp_path / "a", 200) as writer,
        program(READER, "risk", tmp_path / "a") as reader,
        monitor(tmp_path) as url,
    ):
        (queue,) = first(url, "frame")["queues"]
        assert queue["name"] == "a"
        assert queue["writer"]["state"] == "open"
        assert queue["writer"]["pid"] == writer.pid
        assert [(one["name"], one["pid"], one["live"]) for one in queue["readers"]] == [
            ("risk", reader.pid, True)
        ]
        events = frames(url)
        rates = (data["queues"][0]["rate"] for name, data in events if name == "frame")
        assert any(rate > 50 for _, rate in zip(range(30), rates, strict=False))
        events.close()


def detail_of(url: str, number: int) -> Any:
    return first(url, "detail", f"/events?queue={number}")


def test_detail_has_messages_decoded_by_the_schema(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a", codec=Item) as writer:
        for number in range(30):
            writer.send(Item("ALFA", number / 2))
        with monitor(tmp_path) as url:
            number = first(url, "frame")["queues"][0]["id"]
            until(  # the writer publishes its counters once a second
                lambda: detail_of(url, number)["counters"]["messages"] == 30, "not counted"
            )
            detail = detail_of(url, number)
    assert len(detail["messages"]) == 20
    assert detail["messages"][-1].endswith("Item symbol=ALFA price=14.5")
    assert detail["kept"][0]["text"]


def test_wake_latency_is_measured_and_shown(tmp_path: Path) -> None:
    with program(WRITER, tmp_path / "a", 200), monitor(tmp_path) as url:
        until(
            lambda: "aiochronicle_wake_latency_seconds_count" in ask(url, "/metrics").text,
            "no latency",
        )
        found = samples(ask(url, "/metrics").text)
        assert found["aiochronicle_wake_latency_seconds_count"][0].value >= 1
        assert found["aiochronicle_wake_latency_seconds_sum"][0].value > 0
        buckets = [one.value for one in found["aiochronicle_wake_latency_seconds_bucket"]]
        assert buckets == sorted(buckets)


def test_no_probe_measures_nothing(tmp_path: Path) -> None:
    with program(WRITER, tmp_path / "a", 200), monitor(tmp_path, "--no-probe") as url:
        events = frames(url)
        shown = [data for name, data in zip(range(6), events, strict=False) if name]
        events.close()
        assert shown
        assert "aiochronicle_wake_latency_seconds_count" not in ask(url, "/metrics").text


def test_metrics_are_what_prometheus_users_expect(tmp_path: Path) -> None:
    with program(WRITER, tmp_path / "a", 100), monitor(tmp_path) as url:
        open_reader(tmp_path / "a", "away", start="first").close()
        with open_group(tmp_path / "a", "workers") as group:
            taken = group.take_batch(1)
            in_flight = 'group_in_flight_messages{group="workers",queue="a"} 1.0'
            until(lambda: in_flight in ask(url, "/metrics").text, "no group")
            answer = ask(url, "/metrics")
            taken.pop().ack()
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))
    assert all(family.name.startswith("aiochronicle_") for family in families)
    assert all(family.documentation for family in families)
    for family in families:
        if family.type == "counter":
            assert all(one.name.endswith("_total") for one in family.samples)
        assert not any(word in family.name for word in ("_ns", "_ms", "milli", "micro", "kilo"))
    found = samples(answer.text)
    assert found["aiochronicle_queue_messages_total"][0].value >= 1
    assert found["aiochronicle_queue_up"][0].labels == {"queue": "a"}
    state = {one.labels["state"]: one.value for one in found["aiochronicle_writer_state"]}
    assert state == {"open": 1, "stopped": 0, "closed": 0, "died": 0}
    assert found["aiochronicle_group_in_flight_messages"][0].value == 1
    readers = {one.labels["reader"] for one in found["aiochronicle_reader_lag_messages"]}
    assert readers == {"away", "workers"}


def test_health_is_200_and_503_with_reasons(tmp_path: Path) -> None:
    with program(WRITER, tmp_path / "a", 50) as writer, monitor(tmp_path) as url:
        assert (ask(url, "/healthz").status, ask(url, "/healthz").text) == (200, "ok\n")
        writer.kill()
        until(lambda: ask(url, "/healthz").status == 503, "still healthy")
        assert f"a: its writer, pid {writer.pid}, ended" in ask(url, "/healthz").text


def test_events_are_in_the_frames(tmp_path: Path) -> None:
    with program(WRITER, tmp_path / "a", 50) as writer, monitor(tmp_path) as url:
        events = frames(url)
        next(data for name, data in events if name == "frame")
        writer.kill()
        kinds: set[str] = set()
        while "killed" not in kinds:
            name, data = next(events)
            if name == "frame":
                kinds |= {event["kind"] for event in data["events"]}
        assert "opened" in kinds
        events.close()


def test_headers_keep_other_hosts_out(tmp_path: Path) -> None:
    with monitor(tmp_path) as url:
        for path in ("/", "/static/page.js", "/static/plotly.js", "/metrics", "/healthz", "/none"):
            headers = ask(url, path).headers
            policy = headers["content-security-policy"]
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert headers["x-content-type-options"] == "nosniff"
        assert "http" not in ask(url, "/").text.replace("http://www.w3.org", "")


def test_it_only_answers_reading_requests(tmp_path: Path) -> None:
    with monitor(tmp_path) as url:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            for path in ("/", "/events", "/metrics", "/healthz"):
                assert ask(url, path, method).status == 405
        for path in ("/static/../web.py", "/static/%2e%2e/web.py", "/static/none.js"):
            assert ask(url, path).status == 404


def test_on_loopback_a_foreign_host_is_refused(tmp_path: Path) -> None:
    """Another site's page could point its own name at 127.0.0.1 and read the data (DNS rebinding)."""
    with monitor(tmp_path) as url:
        assert ask(url, "/healthz", Host="localhost:8470").status == 200
        assert ask(url, "/healthz", Host="[::1]:8470").status == 200
        for host in ("evil.example", "evil.example:8470", "127.0.0.1.evil.example", ""):
            assert ask(url, "/metrics", Host=host).status == 403


def test_elsewhere_a_token_is_needed(tmp_path: Path) -> None:
    done = started("monitor", tmp_path, "--listen", "0.0.0.0:0")
    assert done.status == 2
    assert "a token is needed" in done.err
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    queues = tmp_path / "queues"
    queues.mkdir()
    with monitor(queues, "--listen", "0.0.0.0:0", "--token-file", str(token)) as shown:
        url = shown.replace("0.0.0.0", "127.0.0.1")
        for path in ("/", "/events", "/metrics", "/static/page.js"):
            refused = ask(url, path)
            assert refused.status == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert ask(url, path, Authorization="Bearer wrong").status == 401
        assert ask(url, "/metrics", Authorization=f"Bearer {TOKEN}").status == 200
        entered = ask(url, f"/?token={TOKEN}")
        assert (entered.status, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ask(url, "/", Cookie=cookie.partition(";")[0]).status == 200


def test_health_needs_no_token_but_gives_no_reasons_without(tmp_path: Path) -> None:
    with open_writer(tmp_path / "secret-name") as writer:
        writer.append(b"x")
    (tmp_path / "secret-name" / "control.meta").write_bytes(b"\xff" * 10)
    with monitor(tmp_path, AIOC_MONITOR_TOKEN=TOKEN) as url:
        assert ask(url, "/metrics").status == 401
        stranger = ask(url, "/healthz")
        assert (stranger.status, stranger.text) == (503, "not healthy\n")
        assert "secret-name" in ask(url, "/healthz", Authorization=f"Bearer {TOKEN}").text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "8470"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--listen", "192.0.2.1:8470"], "a token is needed"),
        (["--token-file", "/dev/null"], "no token in it"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    done = started("monitor", tmp_path, *options)
    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_weak_token_is_refused(tmp_path: Path) -> None:
    done = started("monitor", tmp_path, AIOC_MONITOR_TOKEN="short")
    assert done.status == 2
    assert "16 or more" in done.err


def test_a_root_that_is_missing_is_refused(tmp_path: Path) -> None:
    assert started("monitor", tmp_path / "none").status == 3


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with monitor(tmp_path) as url:
        address = url.removeprefix("http://").rstrip("/")
        done = started("monitor", tmp_path, "--listen", address)
    assert done.status == 1
    assert "cannot listen" in done.err


def test_names_that_are_no_text_are_escaped(tmp_path: Path) -> None:
    for name in (HOSTILE, os.fsdecode(b"\xff\xfe")):
        with open_writer(tmp_path / name) as writer:
            writer.append(b"<script>alert(1)</script>")
    with monitor(tmp_path) as url:
        names = {queue["name"] for queue in first(url, "frame")["queues"]}
        assert names == {HOSTILE, "\\xff\\xfe"}
        shown = {
            one.labels["queue"]
            for one in samples(ask(url, "/metrics").text)["aiochronicle_queue_up"]
        }
        assert shown == names


def test_many_that_read_slowly_get_the_newest(tmp_path: Path) -> None:
    """A client that stops reading neither delays others nor accumulates frames."""
    with program(WRITER, tmp_path / "a", 50), monitor(tmp_path) as url:
        idle = [frames(url) for _ in range(5)]
        for events in idle:
            next(events)
        lively = frames(url)
        seen = [
            data["time"]
            for name, data in zip(range(8), lively, strict=False)
            if name and "time" in data
        ]
        assert seen == sorted(set(seen))
        for events in [*idle, lively]:
            events.close()
