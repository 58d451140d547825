"""Check HTML that a notebook would display."""

from html.parser import HTMLParser
from typing import Any


class Checked(HTMLParser):
    """A parser that accepts only well-formed HTML of these elements, without scripts or loads."""

    ELEMENTS = frozenset({"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.opened: list[str] = []
        self.feed(html)
        self.close()
        assert self.opened == [], html

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.ELEMENTS, tag
        for name, value in attrs:
            assert name == "style", name
            assert value is not None
            assert "url" not in value
            assert "#" not in value, "colours are those of the notebook"
        if tag != "br":
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        assert data.isprintable(), repr(data)
        self.texts.append(data)


def texts(shown: Any) -> list[str]:
    return Checked(shown._repr_html_()).texts
