#!/usr/bin/env bash
# Makes a virtual environment with the first suitable Python on the PATH, or says what is missing.
# usage: tools/make_venv.sh FOLDER      (PYTHON=/path/to/python chooses one)
set -euo pipefail
folder=$1

suits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

for python in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if suits "$python"; then
        if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv" >&2
            exit 1
        fi
        echo "Making $folder with $("$python" --version) ..."
        exec "$python" -m venv "$folder"
    fi
done
echo "No Python 3.11, 3.12 or 3.13 found (looked for: ${PYTHON:-python3 python3.13 python3.12 python3.11})." >&2
echo "Install one, or name it: make serve PYTHON=/path/to/python3.12" >&2
exit 1
