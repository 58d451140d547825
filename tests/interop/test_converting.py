"""Keys and headers in Java queues: a JVM reads, writes and forwards them."""

from pathlib import Path

from aiochronicle import convert, open_reader, open_writer

from .judge import Judge

MESSAGES: list[tuple[bytes, bytes | None, dict[str, bytes]]] = [
    (b"plain", None, {}),
    (b"keyed", b"ALFA", {}),
    (b"traced", b"", {"traceparent": b"\x00\xff", "ä😀": b""}),
    (b"\xc5only", None, {"a": b"x" * 300}),
    (b"y" * 700, b"k" * 300, {}),
]


def test_java_reads_and_passes_on_what_we_convert(judge: Judge, tmp_path: Path) -> None:
    with open_writer(tmp_path / "native") as writer:
        for payload, key, headers in MESSAGES:
            writer.append(payload, key=key, headers=headers)
    convert(tmp_path / "native", tmp_path / "java", headers="field")
    with judge.open(tmp_path / "java") as queue, judge.open(tmp_path / "passed-on") as other:
        stored = [message.payload for message in queue.read_all()]
        assert stored[0] == b"plain"
        for read, (payload, key, headers) in zip(
            judge.decode(stored[1:], "carried"), MESSAGES[1:], strict=True
        ):
            assert read == [
                "LinkedHashMap",
                [
                    ["aiochronicle", ["Integer", 1]],
                    ["key", None if key is None else ["byte[]", key.hex()]],
                    [
                        "headers",
                        [
                            "LinkedHashMap",
                            [[name, ["byte[]", value.hex()]] for name, value in headers.items()],
                        ],
                    ],
                    ["payload", ["byte[]", payload.hex()]],
                ],
            ]
        other.append_bytes(*stored)
    for java in ("java", "passed-on"):
        convert(tmp_path / java, tmp_path / f"{java}-back", headers="field")
        with open_reader(tmp_path / f"{java}-back") as reader:
            found = [(each.payload, each.key, dict(each.headers)) for each in reader]
        assert found == MESSAGES


def test_java_writes_such_documents(judge: Judge, tmp_path: Path) -> None:
    with judge.open(tmp_path / "java") as queue:
        queue.append_fields(
            [
                ("aiochronicle", ["i32", 1]),
                ("key", ["bytes", b"ALFA".hex()]),
                ("headers", ["list", [["text", "desk"], ["bytes", b"fx".hex()]]]),
                ("payload", ["bytes", b"buy".hex()]),
            ]
        )
        queue.append_fields([("aiochronicle", ["i32", 1]), ("other", ["i32", 2])])
    convert(tmp_path / "java", tmp_path / "native", headers="field")
    with open_reader(tmp_path / "native") as reader:
        found = [(each.payload, each.key, dict(each.headers)) for each in reader]
    assert found[0] == (b"buy", b"ALFA", {"desk": b"fx"})
    assert found[1][1:] == (None, {})
