"""Finds or installs what tests of Kerberos need: the programs of an MIT KDC, and Python's package gssapi.

Owns the cache directory and the check whether this machine can run a KDC. Does not start one (`kdc`). What is
not installed comes from Debian's packages: apt downloads them, and they are unpacked into the cache, not
installed. That needs neither root nor a running system. gssapi has no wheels, so it is compiled, in a minute,
against the headers of these packages. Several test runs may install at the same time: a file lock lets only
one of them do it.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tools.harness.kafka_install import CACHE

PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")
#: The libraries are named because apt downloads only these again if they are installed.
PACKAGES = (
    *("krb5-kdc", "krb5-admin-server", "libkrb5-dev"),
    *("libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0"),
)
GSSAPI = "gssapi>=1.8.3"
ROOT = CACHE / "kerberos"


class KerberosUnavailableError(RuntimeError):
    """This machine can't run a KDC, or has no gssapi. The message says what to install."""


class Kerberos(NamedTuple):
    """Where everything is: the programs by name, and what they need."""

    programs: dict[str, str]
    #: The database plugins of krb5kdc, if they are not where it looks for them.
    modules: Path | None
    #: What the programs, and Python with gssapi, need in their environment.
    environment: dict[str, str]


@functools.cache
def kerberos() -> Kerberos:
    """Returns what is installed, or else what is in the cache. Fills the cache if necessary.

    Raises:
        KerberosUnavailableError: neither is possible.
    """
    programs = _programs()
    if len(programs) == len(PROGRAMS) and importlib.util.find_spec("gssapi") is not None:
        return Kerberos(programs, None, {})
    ROOT.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{ROOT}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fill()
    libraries = _libraries()
    return Kerberos(
        # What apt has not downloaded is installed.
        _programs(ROOT / "usr" / "sbin"),
        next(iter(libraries.glob("krb5/plugins/kdb")), None),
        {"LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": str(ROOT / "python")},
    )


def _programs(*before: Path) -> dict[str, str]:
    path = os.pathsep.join([*map(str, before), os.environ.get("PATH", ""), "/usr/sbin"])
    return {name: found for name in PROGRAMS if (found := shutil.which(name, path=path))}


def _libraries() -> Path:
    """The directory of the libraries: its name has the architecture."""
    return next(ROOT.glob("usr/lib/*/libgssapi_krb5.so.2")).parent


def _fill() -> None:
    """Fills the cache, unless it is complete. The file that says so is written last.

    With what is installed, only what is missing is downloaded: it is from the same release.
    """
    complete, wanted = ROOT / "complete", " ".join((*PACKAGES, GSSAPI))
    if complete.exists() and complete.read_text() == wanted:
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise KerberosUnavailableError(
            f"no Kerberos: {', '.join(PROGRAMS)} and Python's package gssapi are not all installed, and "
            "without apt-get they are not downloaded"
        )
    shutil.rmtree(ROOT, ignore_errors=True)
    archives = ROOT / "apt" / "archives"
    (archives / "partial").mkdir(parents=True)
    (ROOT / "apt" / "lists" / "partial").mkdir(parents=True)
    # Lists of its own: those of the system may be old, or not there, and only root can change them.
    apt = ["apt-get", "-qq", "-y", "--no-install-recommends", "-o", "Debug::NoLocking=1"]
    apt += ["-o", "APT::Sandbox::User=root", "-o", f"Dir::State::Lists={ROOT}/apt/lists"]
    apt += ["-o", f"Dir::Cache={ROOT}/apt", "-o", f"Dir::Cache::archives={archives}"]
    _run([*apt, "update"])
    _run([*apt, "--reinstall", "--download-only", "install", *PACKAGES])
    for package in archives.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(ROOT)])
    shutil.rmtree(ROOT / "apt")
    libraries = _libraries()
    include = ROOT / "usr" / "include"
    _run(
        # Not into pip's cache: it would be taken where these libraries are not.
        [sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", "--target", ROOT / "python", GSSAPI],
        GSSAPI_COMPILER_ARGS=f"-DHAS_GSSAPI_EXT_H=1 -I{include} -I{include}/mit-krb5",
        GSSAPI_LINKER_ARGS=f"-L{libraries} -L{libraries}/mit-krb5 -lgssapi_krb5",
        GSSAPI_MAIN_LIB=str(libraries / "libgssapi_krb5.so.2"),
        LD_LIBRARY_PATH=str(libraries),
        # Half of the time of an optimized build.
        CFLAGS="-O0",
    )
    complete.write_text(wanted)


def _run(command: list[str | Path], **environment: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise KerberosUnavailableError(
            f"no Kerberos: {words} failed (exit {done.returncode}): {done.stdout[-500:]}"
        )
