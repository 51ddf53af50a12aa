#!/usr/bin/env bash
# Installs what is missing of the system's side: a C++ compiler, make, and bubblewrap, which confines kernels. Does
# nothing where all is there.
set -euo pipefail

declare -A package_of=([g++]=g++ [make]=make [bwrap]=bubblewrap)
missing=()
for command in "${!package_of[@]}"; do
    command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
if ((${#missing[@]} == 0)); then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}; install them with this system's package manager" >&2
    exit 3
fi
as_root=()
if ((EUID != 0)); then
    as_root=(sudo)
fi
"${as_root[@]}" apt-get update -q
"${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
