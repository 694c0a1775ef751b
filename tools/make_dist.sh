#!/usr/bin/env bash
# Packs build/dist/moebius-VERSION-linux-x86_64.tar.gz: the program, configurations, licences. It runs from wherever it is
# unpacked; the program is linked statically but for libc and libm, and a shared library that it needs all the same is
# put into lib/, where the program looks first.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${MOEBIUS_BUILD:-build/cpu}
version=$(sed -n 's/^project(Moebius VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
name=moebius-$version-linux-x86_64
root=build/dist/$name
rm -rf "$root" "build/dist/$name.tar.gz"
mkdir -p build/logs
cmake --install "$build" --component program --prefix "$root" --strip >build/logs/install_program.log

program=$root/bin/moebius
# Shared libraries beyond what every Linux with glibc has.
mapfile -t shared < <(ldd "$program" | awk '$2 == "=>" { print $1, $3 }' | grep -vE '^(libc|libm|libdl|librt|libpthread)\.so' || true)
for line in "${shared[@]}"; do
    read -r library path <<<"$line"
    if ! readelf -d "$program" | grep -E 'R(UN)?PATH' | grep -q '\$ORIGIN/../lib'; then
        echo "dist: $program needs $library and does not look in its own lib/ (link it statically, or give it the rpath)" >&2
        exit 1
    fi
    install -D -m 644 "$(readlink -f "$path")" "$root/lib/$library"
done
# glibc is not packed; the oldest one that will do is the newest symbol asked for.
glibc=$(readelf -V "$program" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)

# Licence texts of what is linked or compiled in: the packages of THIRD_PARTY.md's rows 'linked' and 'header'.
licenses=$root/share/doc/moebius/licenses
mkdir -p "$licenses"
packages=$(awk -F'|' '$5 ~ /^ (linked|header) $/ { print $7 }' THIRD_PARTY.md | grep -oE '`[a-z0-9.+-]+`' | tr -d '`' | grep -v '\.a$')
for package in $packages; do
    # Compiled in where there is CUDA, and of no Debian package.
    if [ "$package" = nvidia-cudnn-frontend ]; then
        if "$program" info | grep -q '^build .*CUDA'; then
            cat build/cudnn_frontend/licenses/* >"$licenses/$package.txt"
        fi
        continue
    fi
    # The C++ library's package has the compiler's version in its name.
    [ "$package" != g++ ] || package=libstdc++-$(g++ -dumpversion | cut -d. -f1)-dev
    text=/usr/share/doc/$package/copyright
    if [ ! -r "$text" ]; then
        echo "dist: no licence text of $package ($text)" >&2
        exit 1
    fi
    cp -L "$text" "$licenses/$package.txt"
done
# Debian's texts point at these.
for common in Apache-2.0 GPL-2 GPL-3 LGPL-2.1; do
    [ ! -r "/usr/share/common-licenses/$common" ] || cp -L "/usr/share/common-licenses/$common" "$licenses/$common"
done

cat >"$root/README.txt" <<TEXT
Moebius $version for Linux on x86-64 (glibc ${glibc#GLIBC_} or newer).
    bin/moebius --version
    bin/moebius train --config-name my_genome dataset.path=FILE.fa
Licences: bin/moebius info --licenses, and share/doc/moebius/.
TEXT
# The same input gives the same bytes: order, owner and time do not come from the machine.
time=$(git log -1 --format=%ct 2>/dev/null || echo 0)
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" -C build/dist -cf - "$name" | gzip -9n >"build/dist/$name.tar.gz"
echo "dist: build/dist/$name.tar.gz, $(du -h "build/dist/$name.tar.gz" | cut -f1), needs glibc ${glibc#GLIBC_}"
