"""A Kerberos realm of MIT's KDC on a loopback port, with its database in a temporary folder.

    with Realm.start() as realm:
        keytab = realm.keytab("kafka/localhost")

It starts in less than a second. Commands of the realm get its files by their environment.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testkit.cache import CannotInstall, command
from tests.testkit.kafka import free_ports
from tests.used_peers import uses

NAME = "EXAMPLE.COM"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
START_ATTEMPTS = 3
#: Debian's packages, by command.
COMMANDS = {
    "krb5kdc": "krb5-kdc",
    "kdb5_util": "krb5-kdc",
    "kadmin.local": "krb5-admin-server",
    "krb5-config": "libkrb5-dev",
    "kinit": "krb5-user",
}
#: Not in the PATH of users.
_FOLDERS = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"

KRB5_CONF = """\
[libdefaults]
  default_realm = {name}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  qualify_shortname = ""
  udp_preference_limit = 1
[realms]
  {name} = {{
    kdc = 127.0.0.1:{port}
  }}
"""
KDC_CONF = """\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {name} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/kadm5.acl
    supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
  }}
"""


class Realm:
    """A running KDC. Leaving the context ends it and removes its files."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls) -> Self:
        """Start a KDC with an empty database and wait until it accepts connections.

        Another process can take its port before it; the start is then retried.
        """
        for name, package in COMMANDS.items():
            if not shutil.which(name, path=_FOLDERS):
                raise CannotInstall(f"`{name}` is not on this machine: install {package}")
        uses("MIT Kerberos", _version())
        for attempt in range(START_ATTEMPTS):
            realm = cls(Path(tempfile.mkdtemp(prefix="kopgate-kerberos-")), *free_ports(1))
            try:
                if realm._launch():
                    return realm
                if attempt + 1 == START_ATTEMPTS:
                    raise CannotInstall(f"krb5kdc failed:\n{realm.log()}")
            except BaseException:
                realm.stop()
                raise
            realm.stop()
        raise AssertionError("the last attempt returns or raises")

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for programs that use the library."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5RCACHENAME": f"file2:{self.folder / 'replays'}",
            "PATH": _FOLDERS,
        }

    @property
    def config(self) -> Path:
        return self.folder / "krb5.conf"

    def principal(self, name: str) -> None:
        """Create a principal with random keys."""
        self._admin(f"addprinc -randkey {name}")

    def keytab(self, *names: str) -> Path:
        """Create principals if they do not exist, and write a new keytab with new keys of all.

        Older keytabs of these principals are no longer valid for new tickets.
        """
        file = Path(tempfile.mkdtemp(dir=self.folder)) / "keytab"
        for name in names:
            self.principal(name)
            self._admin(f"ktadd -k {file} {name}")
        return file

    def ticket(self, name: str, keytab: Path) -> Path:
        """Log in by a keytab; return the cache with the ticket."""
        cache = keytab.with_name(f"{name.replace('/', '-')}.cache")
        self.run("kinit", "-k", "-t", str(keytab), "-c", f"FILE:{cache}", name)
        return cache

    def run(self, *argv: str) -> str:
        return command(argv, env=self.environment)

    def log(self) -> str:
        return (self.folder / "kdc.log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _admin(self, query: str) -> None:
        # The exit code is 0 even if the query fails; what fails later says more.
        self.run("kadmin.local", "-q", query)

    def _launch(self) -> bool:
        """Whether the KDC runs."""
        values = {"name": NAME, "port": self._port, "folder": self.folder}
        self.config.write_text(KRB5_CONF.format(**values))
        (self.folder / "kdc.conf").write_text(KDC_CONF.format(**values))
        self.run("kdb5_util", "-P", "master", "create", "-s", "-r", NAME)
        with (self.folder / "kdc.log").open("wb") as output:
            self._process = subprocess.Popen(
                ["krb5kdc", "-n"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.environment},
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), 5).close()
            except OSError:
                time.sleep(0.02)
            else:
                return True
        return False


def _version() -> str:
    return command(["krb5-config", "--version"]).rpartition(" ")[2].strip()
