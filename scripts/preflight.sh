#!/bin/sh
# What the build needs from the system, checked before anything is downloaded.
#   preflight.sh find           prints the first Python >= 3.11 on PATH (nothing when there is none)
#   preflight.sh check PYTHON   exits 0 when PYTHON, its venv, its headers and a C++20 compiler are there; else
#                               says what is missing and prints the one apt or dnf line that installs it
set -u

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

has_headers() {
    "$1" -c 'import os, sys, sysconfig; h = os.path.join(sysconfig.get_paths()["include"], "Python.h")
sys.exit(not os.path.isfile(h))'
}

has_compiler() {
    command -v "${CXX:-c++}" >/dev/null 2>&1 || return 1
    printf '#include <version>\n#include <span>\nint main() { return std::span<int>().size(); }\n' |
        "${CXX:-c++}" -std=c++20 -x c++ -fsyntax-only - >/dev/null 2>&1
}

# The package names of one missing thing ($2) for a package manager ($1); Debian names them after the interpreter.
package() {
    case "$1:$2" in
        apt:compiler) echo g++ ;;
        apt:headers) echo "$debian-dev" ;;
        apt:venv) echo "$debian-venv" ;;
        apt:python) echo "$debian $debian-dev $debian-venv" ;;
        dnf:compiler) echo gcc-c++ ;;
        dnf:headers) echo "$fedora-devel" ;;
        dnf:venv) echo "$fedora $fedora-pip" ;;
        dnf:python) echo "$fedora $fedora-devel" ;;
    esac
}

manager() {
    if command -v apt-get >/dev/null 2>&1; then
        echo apt
    elif command -v dnf >/dev/null 2>&1; then
        echo dnf
    fi
}

name_packages() {
    case "${1##*/}" in
        python3.1[1-9]) debian=${1##*/} fedora=${1##*/} ;;
        *) debian=python3 fedora=python3 ;;
    esac
    # A distribution whose python3 is too old has a newer one under its own name.
    if [ "$debian" = python3 ] && command -v python3 >/dev/null && ! is_new_enough python3; then
        debian=python3.11
        fedora=python3.12
    fi
}

describe() {
    case "$1" in
        python) echo "Python 3.11 or newer" ;;
        venv) echo "Python's venv module" ;;
        headers) echo "Python.h" ;;
        compiler) echo "a C++20 compiler" ;;
    esac
}

install_line() {
    which=$(manager)
    packages=
    for thing in "$@"; do packages="$packages $(package "${which:-apt}" "$thing")"; done
    packages=$(echo "$packages" | tr ' ' '\n' | awk 'NF && !seen[$0]++' | tr '\n' ' ' | sed 's/ $//')
    sudo=
    [ "$(id -u)" = 0 ] || sudo='sudo '
    case "$which" in
        apt) echo "${sudo}apt-get install -y $packages" ;;
        dnf) echo "${sudo}dnf install -y $packages" ;;
        *) echo "(no apt-get or dnf here; Debian calls the packages: $packages)" ;;
    esac
}

check() {
    missing=
    if is_new_enough "$1"; then
        "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 || missing="$missing venv"
        has_headers "$1" || missing="$missing headers"
    else
        missing="$missing python"
    fi
    has_compiler || missing="$missing compiler"
    [ -n "$missing" ] || return 0
    name_packages "$1"
    words=
    for thing in $missing; do words="${words:+$words, }$(describe "$thing")"; done
    echo "Kvasir's build needs $words. Install with:" >&2
    # shellcheck disable=SC2086
    echo "  $(install_line $missing)" >&2
    return 1
}

case "${1:-}" in
    find) find_python ;;
    check) check "${2:-python3}" ;;
    *) echo "usage: preflight.sh find | check PYTHON" >&2 && exit 2 ;;
esac
