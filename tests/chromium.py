"""A real headless Chromium, driven by Selenium, for the report and for the front page of the documentation."""

import base64
import io
import shutil
from contextlib import contextmanager

import numpy as np
import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1280,1000", "--hide-scrollbars",
)  # fmt: skip


@contextmanager
def started(profile):
    """The browser; the test is skipped where there is none."""
    selenium = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install selenium")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the PATH; on Debian: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = selenium.Chrome(options, selenium.ChromeService(driver))
    try:
        yield Page(browser)
    finally:
        browser.quit()


class Page:
    """What tests do with a page, in their words."""

    def __init__(self, browser):
        self.browser = browser

    def show(self, path, *, width=1280, height=1000, dark=False):
        """Load a file anew, in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.scheme(dark)
        self.browser.execute_script("window.shownBefore = true")
        self.browser.get(path.as_uri())
        self._wait_until_loaded()

    def _wait_until_loaded(self):
        """On a busy machine the driver's own wait can end while a page of a megabyte is still being parsed."""
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver.support.wait import WebDriverWait

        waiting = WebDriverWait(self.browser, 60, 0.02, ignored_exceptions=[WebDriverException])
        waiting.until(lambda _: self.run("!window.shownBefore && document.readyState === 'complete'"))

    def scheme(self, dark):
        """Ask for dark or light colours."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def run(self, script, *arguments):
        """The value of an expression of JavaScript."""
        return self.browser.execute_script(f"return {script}", *arguments)

    def settle(self):
        """Wait until what was done last is drawn."""
        self.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def one(self, selector):
        return self.browser.find_element("css selector", selector)

    def text(self, selector):
        return self.run("document.querySelector(arguments[0]).textContent", selector)

    def click(self, selector):
        """Press, in a way that does not depend on what is scrolled where."""
        self.browser.execute_script("document.querySelector(arguments[0]).click()", selector)

    def slide(self, selector, value):
        """Move a slider."""
        script = "const s = document.querySelector(arguments[0]); s.value = arguments[1]; "
        self.browser.execute_script(script + "s.dispatchEvent(new Event('input'))", selector, value)

    def pointer(self, element):
        """Mouse actions that start on an element in the middle of the window."""
        from selenium.webdriver import ActionChains

        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        return ActionChains(self.browser, duration=20).move_to_element(element)

    def touch(self, element, across=0):
        """Put a finger on an element, move it, and lift it."""
        send = self.browser.execute_cdp_cmd
        send("Emulation.setTouchEmulationEnabled", {"enabled": True})
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        x, y = self.run("(r => [r.x + r.width / 2, r.y + r.height / 2])(arguments[0].getBoundingClientRect())", element)
        send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
        if across:
            send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x + across, "y": y}]})
        send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        send("Emulation.setTouchEmulationEnabled", {"enabled": False})

    def pixels(self, selector="html"):
        """A picture of an element, (height, width, 3)."""
        from PIL import Image

        box = self.run(
            "(r => ({x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height, scale: 1}))"
            "(document.querySelector(arguments[0]).getBoundingClientRect())",
            selector,
        )
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": box})
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB"))

    def pdf(self):
        """The page as it would be printed."""
        printed = self.browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
        return base64.b64decode(printed["data"])

    def complaints(self):
        """What the console has said since the last call."""
        return [entry["message"] for entry in self.browser.get_log("browser")]
