"""``python -m gpu_runtime.worker --model NAME --fd N``: one end of a socket pair is the inherited descriptor N."""

from __future__ import annotations

import argparse
import os
import sys

from gpu_runtime.worker.main import serve


def main() -> int:
    """Run until the host lets go; the exit status."""
    parser = argparse.ArgumentParser(prog="gpu_runtime.worker", description="Hosts one model for a duologue server.")
    parser.add_argument("--model", required=True, help="name of a plugin in the entry point group duologue.models")
    parser.add_argument("--fd", required=True, type=int, help="inherited descriptor of the socket to the host")
    options = parser.parse_args()
    return serve(options.model, options.fd)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a model may have left threads that never end
