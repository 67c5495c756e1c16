"""Keys and certificates: warned about before they expire, and renewed without new keys at the nodes."""

import datetime
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'trustmix[flower]'")

from trustmix.cli import app
from trustmix.errors import TrustmixError
from trustmix.transport import keys
from trustmix.transport.keys import certificate_expiry, make_keys, renew_certificates, warn_of_expiry


def handshake(server: Path, ca_certificate: Path) -> None:
    """A TLS handshake with the server's certificate, which a client checks with that of the authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(server / "server.crt", server / "server.key")
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def accept() -> None:
            with suppress(ssl.SSLError, OSError), context.wrap_socket(theirs, server_side=True):
                pass

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            client = ssl.create_default_context(cafile=str(ca_certificate))
            with client.wrap_socket(ours, server_hostname="trustmix.example.org"):
                pass
        finally:
            thread.join()


def test_renewed_certificates_last_longer_and_nodes_with_the_old_authority_accept_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "keys"
    monkeypatch.setattr(keys, "VALIDITY_DAYS", 10)
    make_keys(folder, ["trustmix.example.org", "10.0.0.7"], ["north"])
    server, old_ca = folder / "server", tmp_path / "old.crt"
    old_ca.write_bytes((folder / "ca.crt").read_bytes())
    kept = {
        file: file.read_bytes() for file in (folder / "ca.key", server / "server.key", folder / "north" / "node.key")
    }
    monkeypatch.setattr(keys, "VALIDITY_DAYS", 825)
    printed = CliRunner().invoke(app, ["keys", str(folder), "--renew"])
    assert "start `trustmix serve` again; the run goes on" in printed.output
    assert certificate_expiry(server / "server.crt") > datetime.datetime.now(datetime.UTC) + datetime.timedelta(
        days=800
    )
    assert all(file.read_bytes() == before for file, before in kept.items())
    assert (folder / "north" / "ca.crt").read_bytes() == (folder / "ca.crt").read_bytes() != old_ca.read_bytes()
    assert ((server / "server.crt").stat().st_mode & 0o777) == 0o600
    handshake(server, old_ca)
    handshake(server, folder / "ca.crt")
    make_keys(tmp_path / "other", ["trustmix.example.org"], ["north"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, tmp_path / "other" / "ca.crt")


@pytest.mark.parametrize("days", [400, 5, -1])
def test_a_certificate_that_expires_soon_is_warned_about_and_an_expired_one_refused(
    days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "VALIDITY_DAYS", max(days, 0))
    make_keys(tmp_path / "keys", ["localhost"], ["north"])
    file = tmp_path / "keys" / "server" / "server.crt"
    if days < 0:
        with pytest.raises(TrustmixError, match=r"has expired on .*trustmix keys FOLDER --renew"):
            warn_of_expiry(file)
        return
    warn_of_expiry(file)
    assert (f"the certificate {file} expires on" in caplog.text) == (days == 5)


def test_renewing_needs_the_key_of_the_authority(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["localhost"], ["north"])
    (tmp_path / "keys" / "ca.key").unlink()
    with pytest.raises(TrustmixError, match=r"lacks ca\.key"):
        renew_certificates(tmp_path / "keys")
    assert CliRunner().invoke(app, ["keys", str(tmp_path / "keys")]).exit_code == 2
