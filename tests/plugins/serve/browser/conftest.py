"""The browsers of the tests of pages."""

from tests.browser.conftest import axe, browser, either, firefox, opened, playwright, written

__all__ = ["axe", "browser", "either", "firefox", "opened", "playwright", "written"]
