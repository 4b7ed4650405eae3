"""The repository's own rules, which no linter knows.

* No file of code longer than 500 lines, no function longer than 60: the tail is what rots.
* No handler that catches everything and goes on, but in tests: a broad except hides the bug it was written for.
* No queue without a bound.
* No address of a package registry and no path of somebody's machine in any file.
* The lock files' inputs name what pyproject.toml declares.

usage: python -m tools.check      prints each breach as ``path:line: what``; exit status 1 if there is one
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

ALLOWED: dict[str, str] = {
    "adapters/server/application.py: broad-except": "a connection that crashes must end alone; its fault is logged",
    "core/actors/crashes.py: broad-except": "a session that crashes must end alone; its fault is logged",
    "store/sql/writer.py: broad-except": "a writer that trips must answer its group; its fault is logged",
    "gpu_runtime/models/cascade/llama.py: broad-except": "a callback out of native code, which no exception may cross",
}
"""What may break a rule: "path: rule" -> why. Empty is best; a line here is a debt with its reason."""

CODE_SUFFIXES = {".py", ".js", ".mjs", ".sh", ".pml", ".css"}

# Written so that this file does not match itself.
REGISTRY_HOST = re.compile(r"\bpypi\.org|pythonhosted\.org|registry\.npmjs|deb\.debian\.org|\bproxy\.golang|crates\.io")
MACHINE_PATH = re.compile(r"""(?<![\w.$~*>/-])/(?:root|home|Users|work)/\w""")


def listed_files() -> list[Path]:
    """Every file that git tracks or would add, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (Path(name) for name in listing.stdout.decode().split("\0") if name)
    return sorted(path for path in paths if (ROOT / path).is_file())


def long_file(path: Path, text: str) -> Iterator[str]:
    """A file of code that should be two."""
    lines = text.count("\n")
    if path.suffix in CODE_SUFFIXES and lines > FILE_LINES_MAX:
        yield f"{path}:1: long-file: {lines} lines, at most {FILE_LINES_MAX}"


def code_rules(path: Path, text: str) -> Iterator[str]:
    """Long functions, broad handlers, unbounded queues."""
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: long-function: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
        elif isinstance(node, ast.ExceptHandler) and path.parts[0] != "tests" and _catches_everything(node):
            yield f"{path}:{node.lineno}: broad-except: name the exceptions that can be dealt with here"
        elif isinstance(node, ast.Call) and path.parts[0] != "tests" and _is_unbounded_queue(node):
            yield f"{path}:{node.lineno}: unbounded-queue: give it a bound"


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False  # it only tidies up on the way out
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in kinds)


def _is_unbounded_queue(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open_memory_channel":
        return bool(call.args) and ast.unparse(call.args[0]) in ("math.inf", "inf", "float('inf')")
    return name == "SimpleQueue" or (
        name in ("Queue", "LifoQueue", "PriorityQueue") and not call.args and not call.keywords
    )


def foreign_addresses(path: Path, text: str) -> Iterator[str]:
    """Addresses of registries, paths of machines."""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := REGISTRY_HOST.search(line):
            yield f"{path}:{number}: registry-host: {match.group()}"
        if match := MACHINE_PATH.search(line):
            yield f"{path}:{number}: machine-path: {match.group()}"


def _names(requirements: Iterable[str]) -> set[str]:
    """Requirements as they are compared: name in lower case with its bounds; comments and options left out."""
    stripped = (line.split(" #")[0].strip() for line in requirements)
    return {line.lower().replace("-", "_").replace(" ", "") for line in stripped if line and line[0] not in "#-"}


def requirement_drift() -> Iterator[str]:
    """requirements/*.in against pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    inputs = {
        path.stem: _names(path.read_text(encoding="utf-8").splitlines()) for path in ROOT.glob("requirements/*.in")
    }

    no_deps = {line.split("==")[0] for line in inputs["cascade-no-deps"]}
    cascade = {line for line in _names(extras["cascade"]) if line not in no_deps}
    wanted = {
        "base": _names(project["dependencies"]) | cascade | _names(["setuptools>=80"]),
        "dev": _names(extras["dev"]),
        "docs": _names(extras["docs"]),
    }
    for stem, names in wanted.items():
        for name in sorted(names ^ inputs[stem]):
            yield f"requirements/{stem}.in:1: requirement-drift: {name} differs from pyproject.toml"


def breaches() -> list[str]:
    """Every breach of a rule that ALLOWED does not name."""
    found: list[str] = []
    for path in listed_files():
        data = (ROOT / path).read_bytes()
        if b"\0" in data:  # no text: a sound, a picture, a session that somebody has exported
            continue
        text = data.decode("utf-8")
        found += [*long_file(path, text), *code_rules(path, text), *foreign_addresses(path, text)]
    found += requirement_drift()
    return [breach for breach in found if _allowance(breach) not in ALLOWED]


def _allowance(breach: str) -> str:
    path, _line, rule = breach.split(":")[:3]
    return f"{path}:{rule}"


def main() -> int:
    """Print the breaches; 1 if there are any."""
    found = breaches()
    for breach in found:
        print(breach)
    print(f"{len(found)} breaches of the repository's rules" if found else "The repository's rules hold.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
