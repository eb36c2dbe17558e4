#!/usr/bin/env bash
# Installs what cross-building for 64-bit Arm needs besides the packages of the normal build: clang, its linker and qemu's
# user mode; and unpacks Debian's arm64 libraries into build/aarch64-sysroot (250 MB, 110 MB to download), where they meet
# no package of this system. Does nothing if all of it is there; only the tools need an administrator.
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/install_packages.sh clang-19 lld-19 qemu-user
mapfile -t libraries < <(./scripts/install_packages.sh --list | grep -E -- '-dev$|^catch2$')
libraries+=(libc6-dev libstdc++-12-dev)
sysroot=$PWD/build/aarch64-sysroot
[[ $(cat "$sysroot/packages" 2>/dev/null) != "${libraries[*]}" ]] || exit 0

# An apt of its own: lists and archives of arm64, and a system in which nothing is installed yet.
rm -rf "$sysroot"
mkdir -p "$sysroot"/apt/{state/lists/partial,archives/partial}
trap 'rm -rf "$sysroot/apt"' EXIT
touch "$sysroot/apt/status"
apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o "Dir::State=$sysroot/apt/state"
     -o "Dir::State::status=$sysroot/apt/status" -o "Dir::Cache=$sysroot/apt" -o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" install -y --download-only --no-install-recommends "${libraries[@]}"
for package in "$sysroot"/apt/archives/{lib,linux-libc,zlib,catch2,nlohmann,openmpi-common}*.deb; do  # no compilers, no Perl
  dpkg -x "$package" "$sysroot"
done
find "$sysroot" -lname '/*' -printf '%p %l\n' | while read -r link target; do ln -sfn "$sysroot$target" "$link"; done
echo "${libraries[*]}" >"$sysroot/packages"
