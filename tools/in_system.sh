#!/usr/bin/env bash
# Runs a command in a bare system: tools/in_system.sh FOLDER USER COMMAND…; as root. /proc and /dev are mounted in a name
# space of this call, so nothing stays mounted after it; where that is not allowed, a plain chroot is all. Proxies of the
# environment are handed on.
set -euo pipefail
folder=$(readlink -f "$1") user=$2
shift 2
home=/home/$user
[ "$user" != root ] || home=/root
environment=(HOME="$home" USER="$user" LOGNAME="$user" LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done
if ! unshare --mount --fork --pid true 2>/dev/null; then
    echo "in_system: no name space of mounts here; $folder has no /proc and no /dev of its own" >&2
    exec env -i "${environment[@]}" "$(type -P chroot)" --userspec="$user" "$folder" "$@"
fi
# shellcheck disable=SC2016
exec unshare --mount --fork --pid --kill-child bash -c '
    set -euo pipefail
    folder=$1 user=$2
    shift 2
    mount --make-rprivate /
    mount -t proc proc "$folder/proc" 2>/dev/null || mount --rbind /proc "$folder/proc"
    mount --rbind /dev "$folder/dev"
    exec env -i "$@"' in_system "$folder" "$user" "${environment[@]}" \
    chroot --userspec="$user" "$folder" "$@"
