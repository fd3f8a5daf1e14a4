#!/bin/sh
# Prints the path of a Python (3.11 or newer) that can build cyproducer. If there is none, prints what is
# missing and exits with 1. If the environment variable PYTHON is set, tries only that one.
set -eu

here=$(dirname "$0")
pyenv_root=${PYENV_ROOT:-$HOME/.pyenv}
complaint=

# Newest first, but 3.14 after the more widely used versions, and pyenv's own last. pyenv's shims are on PATH
# whether or not they work, so each candidate is run, not only looked up.
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.14 python3 python "$pyenv_root"/versions/3.1[1-9]*/bin/python3}; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    status=0
    answer=$("$candidate" "$here/check_python.py" 2>&1) || status=$?
    case $status in
        0)
            echo "$answer"
            exit 0
            ;;
        3) complaint=${complaint:-$answer} ;;
    esac
done

if [ -n "$complaint" ]; then
    echo "error: $complaint" >&2
elif [ -n "${PYTHON:-}" ]; then
    echo "error: PYTHON=$PYTHON is not a Python 3.11 or newer" >&2
else
    echo "error: no Python 3.11 or newer on PATH or in pyenv: install one (Debian: apt-get install python3 python3-venv python3-dev), or name it: make PYTHON=/path/to/python" >&2
fi
exit 1
