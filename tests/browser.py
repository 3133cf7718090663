"A page in headless Chromium, driven over its debugging socket: real keys, a real pointer, and every request it makes."
import json
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

chromium = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
                None)
needs_chromium = pytest.mark.skipif(chromium is None, reason="Chromium is not installed: the page cannot be opened")


class Page:
    "One tab."
    def __init__(self, address, width, height, dark):
        from websocket import create_connection
        self.socket = create_connection(address, timeout=600, suppress_origin=True)
        self.count, self.requests, self.errors = 0, [], []
        for domain in ("Page", "Runtime", "Network", "DOM"): self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.send("Emulation.setEmulatedMedia",
                  features=[dict(name="prefers-color-scheme", value="dark" if dark else "light")])

    def send(self, method, **params):
        "The answer to a command; what happens meanwhile is noted."
        self.count += 1
        self.socket.send(json.dumps(dict(id=self.count, method=method, params=params)))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.count:
                if "error" in message: raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        if message["method"] == "Network.requestWillBeSent": self.requests.append(message["params"]["request"]["url"])
        if message["method"] == "Runtime.exceptionThrown": self.errors.append(message["params"]["exceptionDetails"])

    def open(self, url):
        self.send("Page.navigate", url=str(url))
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        "The value of an expression in the page."
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result: raise RuntimeError(result["exceptionDetails"]["exception"].get("description"))
        return result["result"].get("value")

    def wait(self, condition, seconds=600):
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end: raise TimeoutError(condition)
            time.sleep(0.02)

    def text(self, selector): return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def press(self, key, selector, times=1, shift=False):
        "Focus an element and press a key."
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "Enter": 13}[key]
        more = dict(text="\r") if key == "Enter" else {}
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                          modifiers=8*shift,
                          **(more if kind == "keyDown" else {}))

    def drag(self, start, end):
        "Press the pointer at one place of the window, move it to another, and let go."
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def choose_file(self, selector, path):
        document = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, path):
        import base64
        Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot",
                                                          captureBeyondViewport=True)["data"]))

    @property
    def elsewhere(self):
        "Requests that left the machine's files."
        self.run("0")
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]


@contextmanager
def browser_page(width=1200, height=900, dark=False):
    "A tab of a fresh Chromium, which ends with the block."
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking"]
        process = subprocess.Popen([chromium, *options, f"--remote-debugging-port={port}", f"--user-data-dir={profile}",
                                    "about:blank"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            page = Page(debugger(port), width, height, dark)
            try: yield page
            finally:
                page.send("Browser.close")
                page.socket.close()
        finally:
            process.terminate()
            process.wait(300)


def debugger(port):
    "The socket of the first tab, once the browser listens."
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            with urlopen(f"http://127.0.0.1:{port}/json", timeout=60) as answer: tabs = json.load(answer)
            if tabs := [tab for tab in tabs if tab["type"] == "page"]: return tabs[0]["webSocketDebuggerUrl"]
        except OSError: pass
        time.sleep(0.1)
    raise TimeoutError("Chromium does not answer")
