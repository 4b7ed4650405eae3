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
