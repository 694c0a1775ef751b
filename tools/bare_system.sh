#!/usr/bin/env bash
# A bare Debian 12 in a folder: tools/bare_system.sh FOLDER [PACKAGE…]; as root. Kept and used again when it is whole.
# Packages come from where this machine's apt gets them; nothing about that is written down here or in the repository.
# tools/bare_system.sh --glibc-only FOLDER: no Debian, but a few programs of this machine and the libraries that they name.
set -euo pipefail

if [ "${1:-}" = --glibc-only ]; then
    folder=$2
    rm -rf "$folder"
    mkdir -p "$folder"/{bin,etc,tmp,proc,dev,home/plain}
    chmod 1777 "$folder/tmp"
    for program in bash ls grep test true; do
        path=$(type -P "$program")
        cp -L "$path" "$folder/bin/$program"
        # Lines of ldd: "name => path (address)" and "loader (address)".
        ldd "$path" | grep -oE '/[^ ]+' | while read -r library; do
            mkdir -p "$folder$(dirname "$library")"
            cp -nL "$library" "$folder$library"
        done
    done
    # What the tarball may ask of a system, even where the programs above do not.
    for library in libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0; do
        path=$(ldconfig -p | awk -v name="$library" '$1 == name && /x86-64/ { print $NF; exit }')
        [ -z "$path" ] || { mkdir -p "$folder$(dirname "$path")" && cp -nL "$path" "$folder$path"; }
    done
    printf 'root:x:0:0::/:/bin/bash\nplain:x:1000:1000::/home/plain:/bin/bash\n' >"$folder/etc/passwd"
    printf 'root:x:0:\nplain:x:1000:\n' >"$folder/etc/group"
    [ -e "$folder/dev/null" ] || mknod -m 666 "$folder/dev/null" c 1 3 2>/dev/null || : >"$folder/dev/null"
    echo "bare system: $folder has a shell, glibc and nothing else"
    exit 0
fi

folder=$1
shift
include=$(IFS=,; echo "$*")
stamp=$folder/.complete
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "bookworm $include" ]; then
    echo "bare system: $folder is there"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "bare system: debootstrap and chroot need root" >&2
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    echo "bare system: debootstrap is missing (tools/setup.sh dist installs it)" >&2
    exit 1
fi

# The first Debian source of this machine's apt, in either of its two formats.
mirror=$(
    { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | sed -n 's/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\) .*/\2/p'
      cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed -n 's/^URIs: *\([^ ]*\).*/\1/p'
    } | grep -E '/debian/?$' | head -n 1 || true
)
if [ -z "$mirror" ]; then
    echo "bare system: this machine's apt has no source of Debian; MOEBIUS_DEBIAN_MIRROR names one" >&2
    mirror=${MOEBIUS_DEBIAN_MIRROR:?}
fi

mkdir -p "$(dirname "$folder")"
# A broken one from before: its mounts are gone, because they are made in a name space of their own (see in_system.sh).
rm -rf "$folder"
log=$folder.log
echo "bare system: debootstrap Debian 12 into $folder (log: $log)"
arguments=(--variant=minbase)
[ -z "$include" ] || arguments+=("--include=$include")
if ! debootstrap "${arguments[@]}" bookworm "$folder" "$mirror" >"$log" 2>&1; then
    tail -n 10 "$log" >&2
    exit 1
fi
# What this machine's apt needs to reach its sources: lists, proxies, keys, certificates, names.
rm -rf "$folder/etc/apt/sources.list" "$folder/etc/apt/sources.list.d"
for item in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf /etc/apt/apt.conf.d /etc/apt/auth.conf.d \
    /usr/share/keyrings /etc/apt/trusted.gpg.d /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf /etc/hosts; do
    if [ -e "$item" ]; then
        mkdir -p "$folder$(dirname "$item")"
        cp -rL "$item" "$folder$(dirname "$item")/" 2>/dev/null || true
    fi
done
rm -f "$folder"/etc/apt/apt.conf.d/*packagekit* "$folder"/etc/apt/apt.conf.d/*appstream*
chroot "$folder" useradd -m -s /bin/bash plain
echo "bookworm $include" >"$stamp"
