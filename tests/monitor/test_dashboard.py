"""The Grafana dashboard queries only metrics and labels that exist."""

import re
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from aiochronicle import open_group, open_reader, open_writer
from aiochronicle.monitor.collector import Collector
from aiochronicle.monitor.latencies import Latencies
from aiochronicle.monitor.metrics import expose

DOCS = Path(__file__).parent.parent.parent / "docs"
DASHBOARD = DOCS / "grafana" / "aiochronicle.json"
NAME = re.compile(r"\baiochronicle_[a-z_]+")


def families(root: Path) -> dict[str, set[str]]:
    """Return all exposed metric names, each with the labels of its samples."""
    latencies = Latencies()
    with open_writer(root / "a") as writer:
        writer.append(bytes(16 << 20))  # a slow append
        open_reader(root / "a", "risk").close()
        open_group(root / "a", "workers").close()
        with Collector(root) as collector:
            text = ""
            latencies.add(collector.look().queues[0].number, 1000)
            while "slow_appends_total{" not in text:  # until the writer publishes it
                text = expose(collector.look(), latencies).decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        for suffix in suffixes.get(family.type, ("",)):
            labels = {label for sample in family.samples for label in sample.labels}
            found[family.name + suffix] = labels
    return found


def expressions() -> list[str]:
    dashboard: dict[str, Any] = msgspec.json.decode(DASHBOARD.read_bytes())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*found, *(one["query"]["query"] for one in dashboard["templating"]["list"][1:])]


def test_every_metric_of_the_dashboard_exists(tmp_path: Path) -> None:
    known = families(tmp_path)
    used = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(used) > 15
    assert used <= known.keys()


MATCHED = re.compile(r"\b(aiochronicle_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def test_every_label_of_the_dashboard_exists(tmp_path: Path) -> None:
    known = families(tmp_path)
    wanted: list[tuple[str, str]] = []
    for expression in expressions():
        for metric, matchers in MATCHED.findall(expression):
            labels = re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', "", matchers))
            wanted += [(metric, label) for label in labels]
        for grouped in GROUPED.findall(expression):
            labels = [label.strip() for label in grouped.split(",")]
            wanted += [(metric, label) for metric in NAME.findall(expression) for label in labels]
    dashboard: dict[str, Any] = msgspec.json.decode(DASHBOARD.read_bytes())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            shown = re.findall(r"\{\{\s*([a-z_]+)\s*\}\}", target.get("legendFormat", ""))
            wanted += [
                (metric, label) for metric in NAME.findall(target["expr"]) for label in shown
            ]
    assert len(wanted) > 20
    assert [(metric, label) for metric, label in wanted if label not in known[metric]] == []


def test_every_metric_is_documented(tmp_path: Path) -> None:
    text = (DOCS / "guide" / "monitoring.md").read_text()
    parts = ("_sum", "_count", "_bucket")
    missing = [name for name in families(tmp_path) if f"`{name}`" not in text]
    assert [name for name in missing if not name.endswith(parts)] == []


def test_panels_do_not_overlap() -> None:
    dashboard: dict[str, Any] = msgspec.json.decode(DASHBOARD.read_bytes())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
