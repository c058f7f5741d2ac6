"""The browser of the tests of pages."""

from tests.browser.conftest import browser, playwright

__all__ = ["browser", "playwright"]
