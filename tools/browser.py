"""A headless Chromium for tools/try_page and tools/try_web, with nothing but Python's own library."""
import base64
import json
import os
import subprocess


class Browser:
    """Chromium's DevTools protocol over two pipes: JSON, each message ended by a zero byte."""

    def __init__(self, program, profile):
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()

        def pipes():
            # The protocol's are 3 and 4; they may be the other's number now.
            a, b = os.dup(to_browser), os.dup(to_us)
            os.dup2(a, 3)
            os.dup2(b, 4)
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", "about:blank"], close_fds=False, preexec_fn=pipes, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(to_us)
        self.out, self.into, self.rest, self.number, self.events = from_us, from_browser, b"", 0, []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def read(self):
        while b"\0" not in self.rest:
            piece = os.read(self.into, 1 << 20)
            if not piece:
                raise RuntimeError("Chromium ended")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, session=None, **arguments):
        self.number += 1
        message = {"id": self.number, "method": method, "params": arguments, **({"sessionId": session} if session else {})}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            said = self.read()
            if said.get("id") == self.number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']['message']}")
                return said["result"]
            self.events.append(said)

    def ask(self, method, **arguments):
        return self.call(method, self.session, **arguments)

    def value(self, expression):
        said = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise RuntimeError(said["exceptionDetails"].get("exception", {}).get("description", "an exception"))
        return said["result"].get("value")

    def open(self, url):
        self.ask("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())

    def mouse(self, kind, x, y, **more):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key)

    def size(self, width, height, dark):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self, path):
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True,
                        clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        self.process.terminate()
        self.process.wait()
