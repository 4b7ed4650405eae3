"""The client stands alone: a fresh interpreter shows what it pulls in."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVER_SIDE = ("core", "store", "gpu_runtime", "adapters.server", "adapters.page", "adapters.replay")
HEAVY = (
    "torch",
    "sqlalchemy",
    "numpy",
    "soxr",
    "msgspec",
    "attrs",
    "attr",
    "prometheus_client",
    "trio_websocket",
    "click",
)


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def within(modules: set[str], packages: tuple[str, ...]) -> set[str]:
    return {module for module in modules if any(module == name or module.startswith(name + ".") for name in packages)}


@pytest.mark.parametrize("module", ["core", "player", "session_config", "numbering", "shell"])
def test_the_core_imports_the_standard_library_only(module: str) -> None:
    loaded = loaded_by(f"import adapters.client.{module}")
    assert not within(loaded, (*SERVER_SIDE, *HEAVY, "trio", "websockets", "wsproto"))


def test_the_trio_shell_adds_trio_and_the_websocket_protocol() -> None:
    loaded = loaded_by("import adapters.client.trio_client")
    assert not within(loaded, (*SERVER_SIDE, *[name for name in HEAVY if name not in ("attrs", "attr")], "websockets"))


def test_the_asyncio_shell_needs_websockets_only_when_it_is_made() -> None:
    loaded = loaded_by("import adapters.client.asyncio_client")
    assert not within(loaded, (*SERVER_SIDE, *HEAVY, "trio", "websockets"))


def test_of_the_wire_only_the_schema_is_used() -> None:
    loaded = within(loaded_by("import adapters.client.trio_client"), ("adapters.wire",))
    assert {module.split(".")[2] for module in loaded if module.count(".") >= 2} == {"schema"}


def test_without_websockets_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["websockets.asyncio.client"] = None
from adapters.client.asyncio_client import DuplexClient
try:
    DuplexClient("ws://localhost:1/v1/realtime")
except ImportError as error:
    assert f"{sys.executable} -m pip install websockets" in str(error), error
else:
    raise SystemExit("no error")
"""
    loaded_by(code)
