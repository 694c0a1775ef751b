#!/usr/bin/env bash
# The README's two commands on a machine that has just been installed: a bare Debian 12 or Ubuntu 24.04 (with git, make
# and sudo), a clone of this repository's HEAD, `make run` and `make test`; once as root, once as a user with sudo, each
# on a system of its own. Needs root. The log goes to docs/logs/fresh_machine_SYSTEM.log, without names of package hosts;
# commit it when set-up files changed. tools/fresh_machine.sh [--system debian12|ubuntu24.04] [root] [user]
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    exec sudo "$0" "$@"
fi
system_name=debian12
if [ "${1:-}" = --system ]; then
    system_name=$2
    shift 2
fi
case $system_name in
    debian12) title="Debian 12" ;;
    ubuntu24.04) title="Ubuntu 24.04" ;;
    *)
        echo "fresh machine: --system $system_name is not one of debian12, ubuntu24.04" >&2
        exit 2
        ;;
esac
roles=("$@")
[ ${#roles[@]} -gt 0 ] || roles=(root user)
for role in "${roles[@]}"; do
    case $role in
        root | user) ;;
        *)
            echo "fresh machine: '$role' is neither root nor user" >&2
            exit 2
            ;;
    esac
done
log=docs/logs/fresh_machine_$system_name.log
mkdir -p docs/logs build/systems

# Nothing about the machine that this ran on: hosts, addresses, its folders.
filter() {
    sed -u -E -e 's#\b(https?|ftp)://[^ ]*#(source)#g' -e 's#([0-9]{1,3}\.){3}[0-9]{1,3}#(address)#g' -e "s#$PWD#.#g" \
        -e 's/\x1b\[[0-9;]*[A-Za-z]//g' -e 's/\r/\n/g'
}

# Only what is committed gets into the clone, so the log must be about a commit.
if [ -n "$(git status --porcelain --untracked-files=no -- . ':!docs/logs')" ]; then
    echo "fresh machine: tracked files differ from HEAD; commit first" >&2
    exit 1
fi

try_as() {
    local role=$1 system=build/systems/fresh_${system_name}_$1 account=root home=/root begin
    # Anew each time: a system that was used is not fresh.
    rm -rf "$system"
    tools/bare_system.sh --system "$system_name" "$system" git make sudo ca-certificates
    if [ "$role" = user ]; then
        account=plain home=/home/plain
        echo 'plain ALL=(ALL) NOPASSWD: ALL' >"$system/etc/sudoers.d/plain"
        chmod 440 "$system/etc/sudoers.d/plain"
    fi
    git clone -q --no-hardlinks . "$system$home/moebius"
    chroot "$system" chown -R "$account:" "$home/moebius"
    for command in "make run" "make test"; do
        echo "--- as $role: $command"
        begin=$SECONDS
        # No terminal and no input, as in a container that is being built.
        tools/in_system.sh "$system" "$account" bash -c "cd $home/moebius && $command" </dev/null
        echo "--- as $role: $command: done in $((SECONDS - begin)) s"
    done
    rm -rf "$system"
}

{
    echo "$title, $(nproc) cores, commit $(git rev-parse HEAD)"
    for role in "${roles[@]}"; do try_as "$role"; done
    echo "fresh machine: ok"
} 2>&1 | filter | tee "$log"
