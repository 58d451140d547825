"""A real Chromium without a window, driven over a pipe by its DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["Browser", "explain_missing"]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def _program() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def explain_missing() -> str | None:
    """Return why no browser is available, or None."""
    return None if _program() else "there is no chromium (Debian's package of that name)"


class Browser:
    """One page."""

    def __init__(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()

        def prepare() -> None:  # the browser uses descriptors 3 and 4
            first = os.dup(theirs_in)
            second = os.dup(theirs_out)
            os.dup2(first, 3)
            os.dup2(second, 4)

        program = _program()
        assert program is not None
        command = [program, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            preexec_fn=prepare,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._left = b""
        self._number = 0
        self._session: str | None = None
        self.log: list[str] = []
        target = next(
            one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.set_dark(dark)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, *, timeout_s: float = 60.0, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        number = self._number
        request: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        until_s = time.monotonic() + timeout_s
        while True:
            answer = self._receive(until_s)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self, until_s: float) -> Any:
        while b"\0" not in self._left:
            left_s = until_s - time.monotonic()
            assert left_s > 0, "the browser does not answer"
            if select.select([self._from], [], [], left_s)[0]:
                piece = os.read(self._from, 1 << 20)
                assert piece, "the browser has ended"
                self._left += piece
        line, _, self._left = self._left.partition(b"\0")
        return json.loads(line)

    def _note(self, event: Any) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Log.entryAdded":
            self.log.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif event["method"] == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.log.append(details.get("exception", {}).get("description", details["text"]))
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    @property
    def requests(self) -> list[str]:
        """Return the URLs that the page requested."""
        self.__dict__.setdefault("_requests", [])
        found: list[str] = self.__dict__["_requests"]
        return found

    def open(self, url: str) -> None:
        """Navigate to a page."""
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str, timeout_s: float = 60.0) -> float:
        """Wait until an expression is true; return the seconds that it took."""
        began_s = time.monotonic()
        while not self.ask(f"Boolean({expression})"):
            assert time.monotonic() - began_s < timeout_s, (expression, self.log)
            time.sleep(0.02)
        return time.monotonic() - began_s

    def hover(self, expression: str) -> None:
        """Move the mouse over the middle of an element."""
        box = self.ask(
            f"(() => {{const one = {expression}; one.scrollIntoView({{block: 'center'}});"
            " const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]})()"
        )
        for step in range(3):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + step, y=box[1])

    def resize(self, width: int, height: int) -> None:
        """Resize the page."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def set_dark(self, dark: bool) -> None:
        """Set the preferred colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Save a screenshot of the viewport or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))
