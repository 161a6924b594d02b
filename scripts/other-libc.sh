#!/bin/bash
# Unpacks the glibc of another Debian release into a folder, for the tests that run programs with it
# (VMAUDIT_OTHER_LIBC=FOLDER cargo nextest run -E 'test(other_glibc)'):   scripts/other-libc.sh FOLDER [SUITE]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
folder=${1:?which folder} suite=${2:-trixie}
mkdir -p "$folder"/{lists/partial,archives/partial,root}
folder=$(cd "$folder" && pwd)
mirror=$(debian_mirror)
[ -n "$mirror" ] || die "apt's sources have no mirror of this machine's release of Debian"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$folder/sources.list"
cat > "$folder/apt.conf" <<EOF
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::Lists "$folder/lists";
Dir::Cache "$folder";
APT::Sandbox::User "root";
EOF
export APT_CONFIG="$folder/apt.conf"
apt-get update -qq
(cd "$folder" && apt-get download -qq libc6 && for package in libc6_*.deb; do dpkg -x "$package" root; done)
loader=$(find "$folder/root/usr/lib" -name 'ld-linux-*' | head -n 1)
dirname "$loader"
