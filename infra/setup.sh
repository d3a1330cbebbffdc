#!/usr/bin/env bash
# Makes .venv as uv.lock says.  Finds uv, or installs it into .cache/uv; on a bare Debian, as root, also what
# Python's venv needs.  Quick when nothing has changed.  Says what a person can do when it cannot.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

apt_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    say "apt-get install $*"
    local options=(-y -o DPkg::Lock::Timeout=300 install --no-install-recommends)
    DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" "$@" >&2 ||
        { apt-get update >&2 && DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" "$@" >&2; }
}

install_uv() {
    local python=$1 place=.cache/uv
    say "installing uv into $place"
    rm -rf "$place"
    if ! "$python" -m venv "$place" >/dev/null 2>&1; then
        # Debian keeps ensurepip in a package of its own.
        apt_install python3-venv || fail "$python cannot make virtual environments; a person can: apt-get install python3-venv"
        rm -rf "$place"
        "$python" -m venv "$place" || fail "$python -m venv fails"
    fi
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check uv || fail "pip could not install uv"
}

# Certificates: those of this system, which a company's proxy may have added to.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" UV_PYTHON_DOWNLOADS=never

python=$(find_python) || { apt_install python3 && python=$(find_python); } ||
    fail "Python 3.11 or newer is needed; a person can install it, or name it: make PYTHON=/path/to/python setup"

if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then
    uv=uv
    say "uv: $(command -v uv)"
else
    uv=.cache/uv/bin/uv
    "$uv" --version >/dev/null 2>&1 || install_uv "$python"
    say "uv: $uv"
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c '' >/dev/null 2>&1; then
    say "making .venv with $python"
    rm -rf .venv
    "$uv" venv --quiet --python "$python" .venv || fail "uv could not make .venv"
fi
say "installing the Python packages of uv.lock into .venv"
# Compiled once here, not by a dozen processes at once when they start.
"$uv" sync --frozen --quiet --compile-bytecode || fail "uv could not install what uv.lock says"
say "done in $SECONDS s"
touch .venv/.installed
