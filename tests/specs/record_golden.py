"""``python -m tests.specs.record_golden``: record golden logs of the current version into specs/golden."""

from __future__ import annotations

import json
from pathlib import Path

from adapters.archive.writing import lines_of
from tests.archive.recordings import record
from tests.specs.test_golden import GOLDEN, facts_of, replay

NAME = "v1_duplex"


def main() -> None:
    """Write the log and its facts."""
    batches, _ = record()
    content = b"".join(line for batch in batches for line in lines_of(batch))
    GOLDEN.mkdir(parents=True, exist_ok=True)
    (GOLDEN / f"{NAME}.jsonl").write_bytes(content)
    path: Path = GOLDEN / "facts.json"
    facts = json.loads(path.read_text()) if path.exists() else {}
    facts[NAME] = facts_of(replay(content))
    path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
