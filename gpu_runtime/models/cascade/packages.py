"""Where installed packages keep their weights; nothing of a package is imported to find out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from gpu_runtime.plugin import ModelUnavailable, pip_command


def package_dir(package: str, install: str) -> Path:
    """The folder of an installed package. Raises ModelUnavailable naming the command that installs it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelUnavailable(f"the package {package} is not installed; get it with: {pip_command(install)}")
    return Path(spec.submodule_search_locations[0])


def package_file(package: str, path: str, install: str) -> Path:
    """A file inside an installed package. Raises ModelUnavailable."""
    found = package_dir(package, install) / path
    if not found.is_file():
        raise ModelUnavailable(
            f"the package {package} has no file {path}; install it again with: {pip_command(install)}"
        )
    return found


def need_module(module: str, install: str) -> None:
    """Raises ModelUnavailable when ``module`` cannot be imported."""
    if importlib.util.find_spec(module) is None:
        raise ModelUnavailable(f"the module {module} is not installed; get it with: {pip_command(install)}")
