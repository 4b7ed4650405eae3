"""The page's files: what can be loaded, and that they ask for nothing from elsewhere."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from adapters import page


def text_of(name: str) -> str:
    return page.load(name).body.decode()


def names(suffix: str) -> list[str]:
    return [name for name in page.ASSETS if name.endswith(suffix)]


def test_every_file_of_the_page_is_listed_and_loads() -> None:
    files = {entry.name for entry in resources.files("adapters.page").iterdir() if entry.is_file()}
    served = {name for name in files if name.endswith((".html", ".css", ".svg", ".js"))}
    assert served == set(page.ASSETS)
    assert all(page.load(name).body for name in page.ASSETS)


@pytest.mark.parametrize(
    "path", ["/__init__.py", "/../__init__.py", "/package.json", "//index.html", "/a/../app.js", ""]
)
def test_nothing_else_can_be_had(path: str) -> None:
    assert page.asset_for_path(path) is None


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(page.UnknownAsset):
        page.load("../__init__.py")


def test_the_root_is_the_page_and_the_etag_follows_the_bytes() -> None:
    root = page.asset_for_path("/")
    assert root == page.load("index.html")
    assert root.content_type.startswith("text/html")
    assert re.fullmatch(r'"[0-9a-f]{32}"', root.etag)
    assert len({page.load(name).etag for name in page.ASSETS}) == len(page.ASSETS)


def test_scripts_and_styles_are_files_of_their_own() -> None:
    html = text_of("index.html")
    assert not re.search(r"<script(?![^>]*\bsrc=)", html)
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)
    for name in names(".js"):
        assert not re.search(r"\beval\(|new Function|innerHTML|setAttribute\(.style", text_of(name)), name


def test_nothing_comes_from_elsewhere() -> None:
    for name in page.ASSETS:
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text_of(name)))
        assert addresses <= {"http://www.w3.org"}, name


def test_every_import_and_every_reference_is_served() -> None:
    for name in names(".js"):
        imported = re.findall(r'from "\./([^"]+)"', text_of(name)) + re.findall(r'new URL\("([^"]+)"', text_of(name))
        assert set(imported) <= set(page.ASSETS), name
    referenced = re.findall(r'(?:src|href)="([^"#]+)"', text_of("index.html"))
    assert set(referenced) <= set(page.ASSETS)


def test_worklets_import_nothing() -> None:
    for name in names("-worklet.js"):
        assert not re.search(r"^import ", text_of(name), re.MULTILINE), name


def test_files_stay_small() -> None:
    for name in page.ASSETS:
        assert text_of(name).count("\n") < 500, name


def _schemes() -> dict[str, dict[str, str]]:
    """Scheme -> the style sheet's colours by name."""
    blocks = re.findall(r":root \{(.*?)\}", text_of("style.css"), re.DOTALL)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", text)) for text in blocks)
    return {"light": light, "dark": light | dark}


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme: str) -> None:
    grounds = {
        "ink": ("ground", "card", "you-ground", "warn-ground", "calm-ground"),
        "soft": ("ground", "card"),
        "you": ("card",),
        "it": ("card",),
        "cut": ("ground", "card"),
        "action-ink": ("action",),
    }
    colours = _schemes()[scheme]
    for text, behind in ((text, behind) for text, many in grounds.items() for behind in many):
        high, low = sorted((_luminance(colours[text]), _luminance(colours[behind])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{text} on {behind}"
