"""Runs a real MIT Kerberos KDC for tests, on a free port of 127.0.0.1.

Owns the realm's files and its process, which ends with `Kdc.stop` or with the process that started it.
`kerberos_install` provides the programs. Nothing of the system's own Kerberos configuration is read.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tools.harness.kafka_cluster import free_ports
from tools.harness.kafka_node import SUPERVISE
from tools.harness.kerberos_install import Kerberos, kerberos
from tools.harness.until import looks

REALM = "EXAMPLE.TEST"

KRB5_CONF = """\
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    # TCP only.
    udp_preference_limit = 1
[realms]
    {realm} = {{
        kdc = 127.0.0.1:{port}
    }}
"""

KDC_CONF = """\
[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {realm} = {{
        database_name = {directory}/principal
        key_stash_file = {directory}/stash
        acl_file = {directory}/acl
    }}
[logging]
    kdc = FILE:{log}
[dbmodules]
    {modules}
"""


class Kdc:
    """One realm. A context manager. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        """``directory``: of the realm's files; it must exist.

        Raises:
            KerberosUnavailableError: this machine has no KDC, and it could not be installed.
        """
        self.kerberos: Kerberos = kerberos()
        self.directory = directory
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def config(self) -> Path:
        """The krb5.conf of clients and servers."""
        return self.directory / "krb5.conf"

    @property
    def jvm_option(self) -> str:
        """What a JVM needs to be in this realm."""
        return f"-Djava.security.krb5.conf={self.config}"

    @property
    def log(self) -> str:
        """What the KDC has been asked."""
        return (self.directory / "kdc.log").read_text()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a client, with a credential cache of its own: ``log_in`` fills it."""
        return self.kerberos.environment | {
            "KRB5_CONFIG": str(self.config),
            "KRB5CCNAME": f"FILE:{self.directory}/ccache",
            "KRB5_CLIENT_KTNAME": f"FILE:{self.directory}/no.keytab",
        }

    def start(self) -> Kdc:
        """Starts the KDC, on the port it had before; the first time, creates the realm.

        Returns when it accepts connections.
        """
        if not self.port:
            self._create()
        self._process = subprocess.Popen(
            [sys.executable, SUPERVISE, self.kerberos.programs["krb5kdc"], "-n"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        for _ in looks(30):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            if self._process.poll() is not None:
                break
        self.stop()
        raise RuntimeError(f"krb5kdc did not start: see {self.directory / 'kdc.log'}")

    def stop(self) -> None:
        """Ends the KDC."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(30)
        process.stdout.close()

    def __enter__(self) -> Kdc:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add(self, principal: str, max_life: str = "1 day") -> Path:
        """Adds a principal with a random key; returns its keytab."""
        keytab = self.directory / f"{principal.replace('/', '-')}.keytab"
        self._run("kadmin.local", "-q", f'addprinc -randkey -maxlife "{max_life}" {principal}')
        self._run("kadmin.local", "-q", f"ktadd -k {keytab} {principal}")
        assert keytab.exists()
        return keytab

    def log_in(self, principal: str, keytab: Path, cache: Path | None = None) -> None:
        """Writes a ticket into a cache, as kinit does. Default: that of ``environment``."""
        program = (
            "import sys, gssapi\n"
            "name = gssapi.Name(sys.argv[1], gssapi.NameType.kerberos_principal)\n"
            "store = {'client_keytab': sys.argv[2], 'ccache': sys.argv[3]}\n"
            "gssapi.Credentials(name=name, usage='initiate', store=store)\n"
        )
        into = self.environment["KRB5CCNAME"] if cache is None else f"FILE:{cache}"
        command = [sys.executable, "-c", program, principal, str(keytab), into]
        subprocess.run(command, env=os.environ | self.environment, check=True)

    def _create(self) -> None:
        with free_ports(1) as ports:
            self.port = ports[0]
        modules = self.kerberos.modules
        names = {"realm": REALM, "port": self.port, "directory": self.directory}
        names |= {
            "log": self.directory / "kdc.log",
            "modules": f"db_module_dir = {modules}" if modules else "",
        }
        self.config.write_text(KRB5_CONF.format(**names))
        (self.directory / "kdc.conf").write_text(KDC_CONF.format(**names))
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **self.environment,
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
        }

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.kerberos.programs[program], *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed (exit {done.returncode}):\n{done.stdout}")
