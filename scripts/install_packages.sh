#!/usr/bin/env bash
# Installs the Debian packages that ditrain needs and this machine lacks. Does nothing, and needs no rights, if none is
# missing. As root it installs by itself, as a user through sudo; with neither it prints what to install and stops.
# Arguments are further packages. With --list it prints the packages instead. Other systems than Debian are left alone.
set -euo pipefail
list=false
[[ ${1:-} != --list ]] || { list=true; shift; }

packages=(g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhwloc-dev libnuma-dev libstb-dev libcxxopts-dev
          libyaml-cpp-dev liburing-dev nlohmann-json3-dev libfmt-dev libspdlog-dev zlib1g-dev libxxhash-dev libjpeg-dev
          libeigen3-dev libtbb-dev
          catch2 "$@")
! $list || { printf '%s\n' "${packages[@]}"; exit 0; }

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "this system does not install by apt-get: CMake looks for the libraries (scripts/README.md)" >&2
  exit 0
fi
missing=()
for package in "${packages[@]}"; do
  # A state such as "install ok installed"; anything else counts as missing.
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ $status == *"ok installed" ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

echo "missing Debian packages: ${missing[*]}"
if [[ $(id -u) -eq 0 ]]; then
  as_root=(env DEBIAN_FRONTEND=noninteractive)
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
  as_root=(sudo env DEBIAN_FRONTEND=noninteractive)
else
  echo "no rights to install them; please ask an administrator to run:" >&2
  echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 2
fi
"${as_root[@]}" apt-get update -q
"${as_root[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}"
