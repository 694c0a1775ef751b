#!/usr/bin/env bash
# Unpacks the tarball of `make dist` in a system that has nothing but Debian's minimal base and trains two steps there as a
# plain user, on a small FASTA file, from a folder with a space in its name. Needs root (through sudo if need be). Where
# debootstrap or mounts are not to be had (containers without the rights, no Debian mirror), it says so and takes a root
# folder with a shell and glibc alone; its last line names which of the two it was.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    exec sudo "$0" "$@"
fi
mapfile -t tarballs < <(ls build/dist/moebius-*-linux-x86_64.tar.gz 2>/dev/null)
if [ ${#tarballs[@]} -ne 1 ]; then
    echo "test_dist: there must be one build/dist/moebius-*.tar.gz ('make dist' makes it); found: ${tarballs[*]:-none}" >&2
    exit 1
fi
tarball=${tarballs[0]}
name=$(basename "$tarball" .tar.gz)
system=build/systems/bare kind="a bare Debian 12"
if ! { tools/bare_system.sh "$system" && tools/in_system.sh "$system" plain true; }; then
    echo "test_dist: no bare Debian here (see above); a root folder with a shell and glibc alone takes its place"
    system=build/systems/glibc_only kind="a root folder with a shell and glibc alone"
    tools/bare_system.sh --glibc-only "$system"
fi

home="$system/home/plain/test folder"
rm -rf "$home"
mkdir -p "$home"
tar -xzf "$tarball" -C "$home"
# Two records, 60,000 bases, seeded: no file from outside.
awk 'BEGIN { srand(7); split("A C G T", base, " ")
    for (record = 1; record <= 2; ++record) {
        print ">record" record
        for (line = 0; line < 500; ++line) { text = ""; for (i = 0; i < 60; ++i) text = text base[1 + int(4 * rand())]; print text } } }' >"$home/small.fa"
# The user of the bare system, not one of this machine.
owner=$(awk -F: '$1 == "plain" { print $3 ":" $4 }' "$system/etc/passwd")
chown -R "$owner" "$home"

in_home() { tools/in_system.sh "$system" plain bash -euo pipefail -c "cd '/home/plain/test folder' && $1"; }
# The system must really be bare, or the test says nothing.
in_home '! ls /usr/lib/x86_64-linux-gnu | grep -qE "^lib(yaml-cpp|hts|stdc\+\+_nonshared|deflate)\.so" && ! command -v g++ cmake >/dev/null'
in_home "$name/bin/moebius --version"
in_home "$name/bin/moebius info --licenses | grep -q HTSlib"
in_home "test -s $name/share/doc/moebius/licenses/libhts-dev.txt"
in_home "$name/bin/moebius train --config-name L0_sanity dataset.path=small.fa num_train_steps=2 \
    dataset.micro_batch_size=2 logger.run_dir=run checkpoint.ckpt_dir=run/checkpoints"
in_home 'test "$(grep -c "\"loss\"" run/metrics.jsonl)" -ge 1 && ls -d run/checkpoints/step_*'
rm -rf "$home"
echo "test_dist: $name trained two steps as a plain user in $kind"
