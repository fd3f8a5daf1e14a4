"""Makes a bare Debian and runs commands of README in a clone of this checkout in it.

    python tools/bare_debian.py trixie                   # `make demo`, then `make test`
    python tools/bare_debian.py bookworm make demo       # one command
    python tools/bare_debian.py --clang sid make demo    # with clang in place of gcc

The bare machine has debootstrap's smallest variant and the packages of README's `apt-get install` line. It is
made anew for each run, below ``.cache/bare``, and takes a gigabyte or two. The commands run as root in a
chroot, in mount and process namespaces of their own: no mount or process outlives them. Only the name
servers, the certificates and pip's settings come from this machine. The clone is of the last commit.

Needs Linux, root, and the Debian package debootstrap. Exit status: 0 every command succeeded, 1 one failed,
2 this machine cannot do it, 75 (EX_TEMPFAIL) Debian's mirror did not answer.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ROOT / ".cache" / "bare"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
COMMANDS = (("make", "demo"), ("make", "test"))
CLONE = "root/cyproducer"

NO_MIRROR = os.EX_TEMPFAIL
UNABLE = 2

# How this machine reaches package registries. The bare one has to reach them in the same way.
SETTINGS = ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")
VARIABLES = re.compile(
    r"(?i)(https?|no|all)_proxy|SSL_CERT_FILE|PIP_CERT|NODE_EXTRA_CA_CERTS|REQUESTS_CA_BUNDLE"
)

# /dev is bound, not made: a chroot that is entered by root may use the devices of this machine.
START = """
set -e
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/dev/shm"
mount -t tmpfs tmpfs "$1/tmp"
root=$1
shift
exec chroot "$root" "$@"
"""


def packages() -> list[str]:
    """Returns what README says that a bare machine needs."""
    found = re.search(r"^apt-get install (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    if found is None:
        sys.exit("bare_debian: README.md has no line `apt-get install ...`")
    return found[1].split()


def mirror_answers(suite: str) -> bool:
    try:
        with urllib.request.urlopen(f"{MIRROR}/dists/{suite}/InRelease", timeout=30):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


class Machine:
    """A bare Debian of one suite."""

    def __init__(self, suite: str) -> None:
        self.root = MACHINES / suite
        self.suite = suite

    def make(self, wanted: Sequence[str]) -> None:
        self.remove()
        MACHINES.mkdir(parents=True, exist_ok=True)
        log = MACHINES / f"{self.suite}.log"
        with log.open("w") as file:
            made = subprocess.run(
                ["debootstrap", "--variant=minbase", self.suite, str(self.root), MIRROR],
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if made.returncode:
                sys.exit(f"bare_debian: debootstrap {self.suite} failed, see {log}")
            self.install(wanted, file)
        # Through file://, git copies what is committed, as from a server.
        subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", str(self.root / CLONE)], check=True)

    def install(self, wanted: Sequence[str], log: IO[str]) -> None:
        for name in SETTINGS:
            if (source := Path("/", name)).exists():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                shutil.copyfile(source, target)
        environment = {"DEBIAN_FRONTEND": "noninteractive"}
        install = ("apt-get", "install", "-qq", "-y", "--no-install-recommends", *wanted)
        for command in (("apt-get", "update", "-qq", "-o", "Acquire::Check-Valid-Until=false"), install):
            if self.run(command, "/", environment, log):
                sys.exit(f"bare_debian: {shlex.join(command)} failed on {self.suite}, see {log.name}")
        # ca-certificates, if a package brought it, has replaced the file.
        certificates = "/etc/ssl/certs/ca-certificates.crt"
        if Path(certificates).exists():
            shutil.copyfile(certificates, str(self.root) + certificates)

    def run(
        self, command: Sequence[str], directory: str, environment: dict[str, str], log: IO[str] | None = None
    ) -> int:
        """Runs a command on the machine and returns its exit status. ``log``: where its output goes."""
        inherited = {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)}
        return subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", START, "sh"),
                *(str(self.root), "env", "-C", directory, *command),
            ],
            env={
                **inherited,
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LANG": "C.UTF-8",
                "TERM": os.environ.get("TERM", "dumb"),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            check=False,
        ).returncode

    def remove(self) -> None:
        if self.root.exists():
            # --one-file-system: if something is mounted below in spite of the namespaces, it stays.
            subprocess.run(["rm", "-rf", "--one-file-system", str(self.root)], check=True)


def say(text: str) -> None:
    print(f"bare_debian: {text}", flush=True)


def try_suite(
    suite: str, commands: Sequence[Sequence[str]], clang: bool, keep: bool
) -> list[tuple[str, ...]]:
    """Runs the commands on a new machine. Returns rows of suite, command, outcome and seconds."""
    wanted = packages()
    environment = {}
    if clang:
        # Python builds extensions with the compiler that it was built with, unless CC names another.
        wanted = ["clang" if name == "gcc" else name for name in wanted]
        environment = {"CC": "clang"}
    machine = Machine(suite)
    say(f"making {suite} with {' '.join(wanted)}")
    started = time.monotonic()
    machine.make(wanted)
    rows: list[tuple[str, ...]] = [(suite, "made", "ok", f"{time.monotonic() - started:.0f} s")]
    for command in commands:
        say(f"{suite}: {shlex.join(command)}")
        started = time.monotonic()
        status = machine.run(command, f"/{CLONE}", environment)
        outcome = f"FAILED ({status})" if status else "ok"
        rows.append((suite, shlex.join(command), outcome, f"{time.monotonic() - started:.0f} s"))
        say("  ".join(rows[-1]))
    if not keep:
        machine.remove()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clang", action="store_true", help="install clang in place of gcc")
    parser.add_argument("--keep", action="store_true", help="leave the machine in .cache/bare")
    parser.add_argument("suites", help="Debian suites, separated by commas: bookworm,trixie,sid")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="default: make demo, then make test")
    arguments = parser.parse_args()
    if sys.platform != "linux" or os.geteuid() != 0:
        print("bare_debian: needs Linux and root", file=sys.stderr)
        return UNABLE
    for program in ("debootstrap", "unshare", "git"):
        if shutil.which(program) is None:
            print(f"bare_debian: needs {program} (Debian: apt-get install debootstrap git)", file=sys.stderr)
            return UNABLE
    suites = arguments.suites.split(",")
    commands = [arguments.command] if arguments.command else COMMANDS
    rows = []
    for suite in suites:
        if not mirror_answers(suite):
            print(f"bare_debian: {MIRROR} did not answer: {suite} was not tried", file=sys.stderr)
            return NO_MIRROR
        rows += try_suite(suite, commands, arguments.clang, arguments.keep)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 1 if any(row[2] != "ok" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
