# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: opened from disk, complete, quiet in the console, readable wide and narrow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asv_writer import planted

from kdbench.report import write

pytestmark = pytest.mark.slow
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium with a profile of its own."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = selenium.Chrome(options=options, service=Service(driver))
    yield running
    running.quit()


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The browser, showing a report whose newest commit is slow in two series of four."""
    root = tmp_path_factory.mktemp("page")
    planted(root / "results", root / "repo", commits=6, slow_at=5, effect=1.2)
    write(root / "results", root / "out", root / "repo")
    browser.get(Path(root / "out" / "index.html").as_uri())
    return browser


def resize(page: Any, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
    )


def visible_chips(page: Any) -> list[str]:
    chips = page.find_elements("css selector", "section table td.verdict .chip")
    return [chip.text for chip in chips if chip.is_displayed()]


@pytest.mark.parametrize("width", [1280, 820, 390])
def test_the_table_and_its_verdicts_are_visible(page: Any, width: int) -> None:
    resize(page, width)
    table = page.find_element("css selector", "section table")
    assert table.is_displayed()
    for text in ("12.3", "µs", "ms", "tok/s", "workload=", "+20."):
        assert text in table.text
    # Newest commit: two series slower, two the same; then the same two slower ones in the history.
    assert sorted(visible_chips(page)) == ["= same"] * 2 + ["▲ slower"] * 4
    assert "Slower: 2 of 4 series" in page.find_element("css selector", ".headline").text
    drawings = page.find_elements("css selector", "svg.spark")
    assert len(drawings) == 4
    assert all(drawing.is_displayed() and drawing.size["width"] >= 150 for drawing in drawings)
    # Nothing sticks out sideways.
    assert page.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


def test_nothing_is_fetched_and_nothing_is_complained_about(page: Any) -> None:
    fetched = page.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []
    assert page.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(page: Any, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    paper = color(page, "body", "background-color")
    assert (luminance(paper) > 0.5) == (scheme == "light")
    for selector in ("body", ".soft", "td .under"):
        assert contrast(color(page, selector, "color"), paper) >= 4.5
    for word in ("slower", "same", "faster", "ambiguous", "failed"):
        chip = f"#reading ~ dl .chip.{word}"
        assert contrast(color(page, chip, "color"), color(page, chip, "background-color")) >= 4.5


def color(page: Any, selector: str, name: str) -> tuple[float, ...]:
    text = page.find_element("css selector", selector).value_of_css_property(name)
    return tuple(float(part) / 255 for part in text[text.index("(") + 1 : -1].split(",")[:3])


def luminance(rgb: tuple[float, ...]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
