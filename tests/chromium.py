"""A headless Chromium for tests of pages, over its debugging pipe: no port, no network, no library."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

AUDIT = Path(__file__).parent / "audit.js"
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)


def find_chromium():
    """Return the path of a Chromium, None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Chromium:
    """A browser with one page; `events` are those of the page: requests, messages of the console, errors."""

    def __init__(self, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def use_pipes():
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3)
            os.dup2(b, 4)

        command = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet, self._errors = subprocess.DEVNULL, Path(profile) / "errors.txt"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=quiet, stdout=quiet, stderr=errors, preexec_fn=use_pipes, close_fds=False
            )
        os.close(to_browser)
        os.close(from_browser)
        self._ids, self._buffer, self.events = itertools.count(1), b"", []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send("Page.addScriptToEvaluateOnNewDocument", source=AUDIT.read_text())

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def send(self, method, **parameters):
        """Call a method of the page and return its result."""
        return self._send(method, self._session, **parameters)

    def _send(self, method, session=None, **parameters):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            assert part or self._process.wait() is None, f"the browser has ended: {self._errors.read_text()}"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def run(self, expression):
        """Return the value of an expression, of a promise what it becomes."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < end, f"never: {expression}"
            time.sleep(0.01)

    def load(self, path, address=""):
        """Open a file at an address, and wait until it is loaded."""
        self.send("Page.navigate", url="about:blank")
        self.events.clear()
        self.send("Page.navigate", url=f"file://{path}{address}")
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")

    def open(self, path, address=""):
        """Open a page of `explore` at an address, and wait until it shows it."""
        self.load(path, address)
        self.wait("document.body.dataset.shown !== undefined")

    def resize(self, width, height=900):
        """Give the page a window; one that is narrow is that of a telephone."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.send("Emulation.setDeviceMetricsOverride", **size, mobile=width < 500)

    def prefer(self, theme):
        """Let the system be light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def click(self, selector):
        """Click on the middle of an element, which is scrolled to."""
        x, y = self.run(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "center"}});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys):
        """Press keys one after another, by their names: Tab, Enter, ArrowRight, 2."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            for kind in ("keyDown", "keyUp"):
                code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, 0)
                typed = {"text": text} if text and kind == "keyDown" else {}
                self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    def walk(self):
        """Press Tab until it has gone through the page; what no key has reached, and where the focus is not seen."""
        faults = []
        self.press("Tab")
        while (unseen := self.run("AUDIT.visit()")) is not None:
            faults += unseen
            self.press("Tab")
        return faults + self.run("AUDIT.unreached()")

    def screenshot(self, path):
        """Save what the page shows, from its top to its end, as PNG."""
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))

    def problems(self):
        """Return the errors and warnings of the console, and the addresses of requests but those of the page itself."""
        texts = []
        for event in self.events:
            kind, values = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown":
                texts.append(values["exceptionDetails"].get("exception", {}).get("description", "an exception"))
            elif kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
                texts.append(str(values["args"]))
            elif kind == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
                texts.append(values["entry"]["text"])
            elif kind == "Network.requestWillBeSent" and values["type"] != "Document":
                url = values["request"]["url"]
                texts += [] if url.startswith("data:") else [url]  # a part of the page
        return texts
