#!/usr/bin/env bash
# Puts the genome of Escherichia coli 536 (4.9 Mb, NC_008253.1) at build/data/NC_008253.fna.gz. It comes with the package
# bowtie-examples, which is only unpacked here, not installed: this needs no root. tools/fetch_genome.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:-build/data}
name=NC_008253.fna.gz
# Of the unpacked text: packages may compress it anew.
expected=cdd0874c881adf3e1819d22b7e49cffa3c761b0793a1b1f10b1c074eeadb4789

matches() { [ -r "$1" ] && [ "$(gzip -dc "$1" 2>/dev/null | sha256sum | cut -d' ' -f1)" = "$expected" ]; }

if matches "$folder/$name"; then
    echo "genome: $folder/$name is there"
    exit 0
fi
mkdir -p "$folder"

publish() {
    if ! matches "$1"; then
        echo "genome: $1 is not the genome that this project's figures are about (sha256 of its text is not $expected)" >&2
        exit 1
    fi
    cp "$1" "$folder/$name.part"
    mv "$folder/$name.part" "$folder/$name"
    echo "genome: $folder/$name, E. coli 536, 4.9 Mb"
}

# Where the package is installed whole (slim images leave /usr/share/doc out), no download is needed.
for place in /usr/share/doc/bowtie/examples/genomes /usr/share/doc/bowtie-examples/genomes; do
    if [ -r "$place/$name" ]; then
        publish "$place/$name"
        exit 0
    fi
done

work=$(mktemp -d "$PWD/$folder/fetch.XXXXXX" 2>/dev/null || mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
log=$work/apt.log
echo "genome: apt-get download bowtie-examples (6 MB), unpacked under $folder"
download() { (cd "$work" && apt-get -q "$@" download bowtie-examples) >>"$log" 2>&1; }
if ! download; then
    # The system's package lists are absent or old: lists of our own, which any user may fetch.
    lists=$(readlink -f "$work")/lists
    mkdir -p "$lists/partial" "$lists/archives/partial"
    own=(-o "Dir::State::Lists=$lists" -o "Dir::Cache=$lists" -o "Dir::Cache::Archives=$lists/archives" -o APT::Sandbox::User="$(id -un)")
    if ! { apt-get -q "${own[@]}" update >>"$log" 2>&1 && download "${own[@]}"; }; then
        tail -n 10 "$log" >&2
        echo "genome: the package bowtie-examples could not be fetched (above: apt's words)." \
            "Put $name, from any source, into $folder and repeat the command." >&2
        exit 1
    fi
fi
dpkg-deb -x "$work"/bowtie-examples_*.deb "$work/unpacked"
found=$(find "$work/unpacked" -name "$name" -print -quit)
if [ -z "$found" ]; then
    echo "genome: this version of bowtie-examples has no $name" >&2
    exit 1
fi
publish "$found"
