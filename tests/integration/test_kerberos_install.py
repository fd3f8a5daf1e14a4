"""What tests of Kerberos say on a machine that cannot run them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.harness import kerberos_install
from tools.harness.kerberos_install import KerberosUnavailableError


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes this a machine without Kerberos that has only these programs, which are shell scripts."""

    def make(**programs: str) -> Path:
        path = tmp_path / "bin"
        path.mkdir()
        for name, script in programs.items():
            (path / name.replace("_", "-")).write_text(f"#!/bin/sh\n{script}\n")
            (path / name.replace("_", "-")).chmod(0o755)
        monkeypatch.setenv("PATH", str(path))
        monkeypatch.setattr(kerberos_install, "ROOT", tmp_path / "cache" / "kerberos")
        monkeypatch.setattr(kerberos_install, "PROGRAMS", ("no-such-kdc",))
        return tmp_path / "cache" / "kerberos"

    return make


def test_without_apt(bare: Callable[..., Path]) -> None:
    bare()
    with pytest.raises(KerberosUnavailableError, match="no-such-kdc and Python's package gssapi are not all"):
        kerberos_install.kerberos.__wrapped__()


def test_what_apt_says_is_in_the_reason(bare: Callable[..., Path]) -> None:
    bare(apt_get="echo no such host; exit 100", dpkg="")
    with pytest.raises(KerberosUnavailableError, match=r"update failed \(exit 100\): no such host"):
        kerberos_install.kerberos.__wrapped__()


def test_a_cache_that_is_complete_is_not_filled_again(bare: Callable[..., Path]) -> None:
    cache = bare()
    libraries = cache / "usr" / "lib" / "some-linux"
    libraries.mkdir(parents=True)
    (libraries / "libgssapi_krb5.so.2").touch()
    complete = cache / "complete"
    complete.write_text(" ".join((*kerberos_install.PACKAGES, kerberos_install.GSSAPI)))
    found = kerberos_install.kerberos.__wrapped__()
    assert found.environment == {"LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": str(cache / "python")}
    complete.write_text("other packages")
    with pytest.raises(KerberosUnavailableError, match="without apt-get"):
        kerberos_install.kerberos.__wrapped__()
