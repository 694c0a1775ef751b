#!/usr/bin/env bash
# A bare Debian 12 or Ubuntu 24.04 in a folder: tools/bare_system.sh [--system debian12|ubuntu24.04] FOLDER [PACKAGE…]; as
# root. Kept and used again when it is whole. Packages come from where this machine's apt gets them, those of the other
# distribution from where debootstrap says; nothing about that is written down here or in the repository.
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

system=debian12
if [ "${1:-}" = --system ]; then
    system=$2
    shift 2
fi
case $system in
    debian12) suite=bookworm ;;
    ubuntu24.04) suite=noble ;;
    *)
        echo "bare system: --system $system is not one of debian12, ubuntu24.04" >&2
        exit 2
        ;;
esac
folder=$1
shift
include=$(IFS=,; echo "$*")
stamp=$folder/.complete
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$suite $include" ]; then
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

# apt_source debian|ubuntu: the first source of that distribution that this machine's apt has, in either of its two formats.
apt_source() {
    { cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | sed -n 's/^deb  *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\) .*/\2/p'
      cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed -n 's/^URIs: *\([^ ]*\).*/\1/p'
    } | grep -E "/$1/?\$" | head -n 1 || true
}

mkdir -p "$(dirname "$folder")"
# A broken one from before: its mounts are gone, because they are made in a name space of their own (see in_system.sh).
rm -rf "$folder"
log=$folder.log
arguments=(--variant=minbase)
[ -z "$include" ] || arguments+=("--include=$include")
script=()
if [ $system = debian12 ]; then
    mirror=$(apt_source debian)
    mirror=${mirror:-${MOEBIUS_DEBIAN_MIRROR:-}}
    if [ -z "$mirror" ]; then
        echo "bare system: this machine's apt has no source of Debian; MOEBIUS_DEBIAN_MIRROR names one" >&2
        exit 1
    fi
else
    # debootstrap's script for all of Ubuntu's releases, by the name of the first one: Debian 12's has no link for noble.
    script=(/usr/share/debootstrap/scripts/gutsy)
    mirror=""
    for candidate in ${MOEBIUS_UBUNTU_MIRROR:-} $(apt_source ubuntu) $(awk '$1 == "default_mirror" { print $2 }' "${script[@]}"); do
        if wget -q -T 20 -t 1 -O /dev/null "${candidate%/}/dists/$suite/InRelease"; then
            mirror=${candidate%/}
            break
        fi
    done
    if [ -z "$mirror" ]; then
        echo "bare system: no source of Ubuntu's $suite can be reached; MOEBIUS_UBUNTU_MIRROR names one" >&2
        exit 1
    fi
    keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    if [ ! -e $keyring ]; then
        # Not a package of Debian 12. The checksum is of the package whose archive key has the fingerprint
        # F6EC B376 2474 EDA9 D21B  7022 8719 20D1 991B C93C, which Ubuntu publishes.
        package=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
        wget -q -T 20 -O "$folder.keyring.deb" "$mirror/$package"
        echo "36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8  $folder.keyring.deb" | sha256sum --quiet -c
        dpkg-deb -x "$folder.keyring.deb" "$folder.keyring"
        keyring=$(readlink -f "$folder.keyring")$keyring
    fi
    arguments+=("--keyring=$keyring")
fi

echo "bare system: debootstrap $system ($suite) into $folder (log: $log)"
if ! debootstrap "${arguments[@]}" "$suite" "$folder" "$mirror" "${script[@]}" >"$log" 2>&1; then
    tail -n 10 "$log" >&2
    exit 1
fi
rm -rf "$folder.keyring" "$folder.keyring.deb"
# What this machine's apt needs to reach its sources: proxies, keys, certificates, names; and its sources, where they are
# of the same distribution.
items=(/etc/apt/apt.conf /etc/apt/apt.conf.d /etc/apt/auth.conf.d /etc/ssl/certs /usr/local/share/ca-certificates /etc/resolv.conf
    /etc/hosts)
if [ "$mirror" = "$(apt_source "${system%%[0-9]*}")" ]; then
    rm -rf "$folder/etc/apt/sources.list" "$folder/etc/apt/sources.list.d"
    items+=(/etc/apt/sources.list /etc/apt/sources.list.d /usr/share/keyrings /etc/apt/trusted.gpg.d)
else
    components="main"
    [ $system = debian12 ] || components="main universe"
    printf "deb $mirror %s $components\n" "$suite" "$suite-updates" >"$folder/etc/apt/sources.list"
fi
for item in "${items[@]}"; do
    if [ -e "$item" ]; then
        mkdir -p "$folder$(dirname "$item")"
        cp -rL "$item" "$folder$(dirname "$item")/" 2>/dev/null || true
    fi
done
rm -f "$folder"/etc/apt/apt.conf.d/*packagekit* "$folder"/etc/apt/apt.conf.d/*appstream*
chroot "$folder" useradd -m -s /bin/bash plain
echo "$suite $include" >"$stamp"
