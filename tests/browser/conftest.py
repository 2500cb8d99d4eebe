"""The browser of the tests of pages: without a network, and with what its console says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1300,1900"):
        options.add_argument(f"--{word}")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")  # no network
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path="/usr/bin/chromedriver")
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture(params=["light", "dark"])
def schemed(request: Any, browser: Any) -> Any:
    """The browser in the light and in the dark scheme."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": request.param}]},
    )
    return browser
