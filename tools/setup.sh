#!/usr/bin/env bash
# Installs by apt what is missing to build and test Moebius, and nothing else: tools/setup.sh [GROUP…]
# (groups of tools/packages.txt; default: build test). Run as root, or as a user who may use sudo; with neither it
# prints the one line that an administrator has to run. Nothing missing: it only asks dpkg, and is done at once.
set -euo pipefail
cd "$(dirname "$0")/.."

groups=("$@")
[ ${#groups[@]} -gt 0 ] || groups=(build test)

if [ "${MOEBIUS_SKIP_SETUP:-}" = 1 ]; then
    echo "setup: MOEBIUS_SKIP_SETUP=1, nothing checked or installed"
    exit 0
fi

packages=()
for group in "${groups[@]}"; do
    mapfile -t found < <(awk -v group="$group" '$1 == group { print $2 }' tools/packages.txt)
    if [ ${#found[@]} -eq 0 ]; then
        echo "setup: no group '$group' in tools/packages.txt; there are:" \
            "$(awk '/^[a-z]/ { print $1 }' tools/packages.txt | sort -u | tr '\n' ' ')" >&2
        exit 2
    fi
    packages+=("${found[@]}")
done

# Only Debian and Ubuntu have these package names.
system=unknown version=""
if [ -r "${MOEBIUS_OS_RELEASE:-/etc/os-release}" ]; then
    # shellcheck disable=SC1091
    . "${MOEBIUS_OS_RELEASE:-/etc/os-release}"
    system=${ID:-unknown} version=${VERSION_ID:-}
fi
if { [ "$system" != debian ] && [ "$system" != ubuntu ]; } || ! command -v dpkg-query >/dev/null; then
    {
        echo "setup: this is ${PRETTY_NAME:-$system}; the set-up knows Debian 12 and Ubuntu 24.04 only."
        echo "setup: install the equivalents of: ${packages[*]}"
        echo "setup: then repeat the command with MOEBIUS_SKIP_SETUP=1"
    } >&2
    exit 1
fi
case "$system $version" in
    "debian 12" | "ubuntu 24.04") ;;
    *) echo "setup: $system $version was not tried (Debian 12 and Ubuntu 24.04 are the supported ones); going on" ;;
esac
if [ "$(uname -m)" != x86_64 ]; then
    echo "setup: this machine is $(uname -m); Moebius supports x86-64 only" >&2
    exit 1
fi

# dpkg-query exits 1 if one of them is unknown to it, which is no error here.
installed=$(dpkg-query -W -f='${db:Status-Abbrev}|${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^ii *|//p' || true)
missing=()
for package in "${packages[@]}"; do
    grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: nothing missing (${#packages[@]} packages: ${groups[*]})"
    exit 0
fi

echo "setup: missing: ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
    # Without a terminal sudo can't ask for a password, so it must work without one.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && sudo -v; }; }; then
        as_root=(sudo)
    else
        {
            echo "setup: neither root nor able to use sudo. An administrator has to run this one line:"
            echo "    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
        } >&2
        exit 1
    fi
fi

log=build/logs/setup.log
mkdir -p build/logs
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0)
echo "setup: ${as_root[*]:-as root:} apt-get update, then apt-get install of these (log: $log)"
if ! { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; } </dev/null >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "setup: apt-get failed, see above and $log" >&2
    exit 1
fi
echo "setup: installed ${#missing[@]} packages"
