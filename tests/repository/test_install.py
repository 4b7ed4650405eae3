"""The bar of the installation, on what pip prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.install import bar, pinned, progress

ROOT = Path(__file__).resolve().parents[2]


def test_it_counts_what_the_lock_names() -> None:
    lock = ROOT / "requirements/base.lock"
    assert pinned(["--no-deps", "-r", str(lock)]) == sum(
        line[:1].isalnum() for line in lock.read_text().splitlines() if "==" in line
    )
    assert pinned(["--editable", "."]) == 0


def test_the_bar_moves_with_each_package_and_keeps_its_width() -> None:
    said = [
        "Looking in links: somewhere\n",
        "Collecting attrs==25.4.0 (from -r requirements/base.lock (line 7))\n",
        "  Using cached attrs-25.4.0-py3-none-any.whl (67 kB)\n",
        "Processing ./wheels/typing_extensions-4.16.0-py3-none-any.whl (from -r x (line 9))\n",
        "Ignoring cffi: markers 'os_name == \"nt\"' don't match your environment\n",
        "Requirement already satisfied: click==8.3.1 in ./lib\n",
        "Installing collected packages: attrs, click\n",
        "Successfully installed attrs-25.4.0\n",
    ]
    shown = list(progress(said, 4))
    names = ["attrs", "typing_extensions", "cffi", "click", "unpacking"]
    assert [line.split()[1:3] for line in shown] == [[f"{min(n, 4)}/4", name] for n, name in enumerate(names, 1)]
    assert [line.count("#") for line in shown] == [6, 12, 18, 24, 24]
    assert len({len(line) for line in (*shown, bar(7, 2, "x" * 200))}) == 1


def test_what_pip_cannot_do_is_told_and_its_code_kept(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text("no-such-package-of-duologue==1.0 --hash=sha256:" + "0" * 64 + "\n")
    command = [sys.executable, "-m", "tools.install", "--no-index", "--require-hashes", "-r", str(lock)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "no-such-package-of-duologue" in done.stderr
    assert "\r" not in done.stderr, "no bar where there is no terminal"
