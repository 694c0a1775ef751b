#!/usr/bin/env bash
# tools/setup.sh without changing this machine: what it says on a foreign system, for a group that does not exist, and,
# in a copy whose list has a package that nobody has, to a user who is neither root nor may use sudo.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tools"
cp tools/setup.sh tools/packages.txt "$work/tools/"
failures=0

# expect TEXT STATUS COMMAND…: the command exits with STATUS and its output has TEXT.
expect() {
    local text=$1 status=$2 got=0 output
    shift 2
    output=$("$@" 2>&1 </dev/null) || got=$?
    if [ "$got" != "$status" ] || ! grep -qF -- "$text" <<<"$output"; then
        printf 'test_setup: %s\n  exit %s, expected %s and "%s"; it said:\n%s\n' "$*" "$got" "$status" "$text" "$output" >&2
        failures=$((failures + 1))
    fi
}

printf 'ID=fedora\nVERSION_ID=40\nPRETTY_NAME="Fedora Linux 40"\n' >"$work/os-release"
expect "this is Fedora Linux 40" 1 env MOEBIUS_OS_RELEASE="$work/os-release" "$work/tools/setup.sh"
expect "MOEBIUS_SKIP_SETUP=1" 1 env MOEBIUS_OS_RELEASE="$work/os-release" "$work/tools/setup.sh"
expect "nothing checked" 0 env MOEBIUS_SKIP_SETUP=1 MOEBIUS_OS_RELEASE="$work/os-release" "$work/tools/setup.sh"
expect "no group 'tests'" 2 "$work/tools/setup.sh" tests

# A package that cannot be there: a plain user is told the line for an administrator, and nothing is installed.
echo "build libmoebius-is-not-a-package-dev" >>"$work/tools/packages.txt"
chmod -R a+rX "$work"
plain=("$work/tools/setup.sh" build)
if [ "$(id -u)" = 0 ]; then
    plain=(setpriv --reuid=65534 --regid=65534 --clear-groups "${plain[@]}")
fi
# An empty folder first in PATH would not hide sudo, so a stand-in that refuses does.
mkdir "$work/bin"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/sudo"
chmod -R a+rx "$work/bin"
expect "apt-get install -y --no-install-recommends libmoebius-is-not-a-package-dev" 1 env PATH="$work/bin:$PATH" "${plain[@]}"

if [ $failures -gt 0 ]; then exit 1; fi
echo "test_setup: 5 cases as expected"
