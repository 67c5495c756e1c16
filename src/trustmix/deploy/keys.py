"""Keys of a deployment: an authority of one's own, the server's certificate, and a key pair for every node.

Nodes know the server by its certificate, which the authority has signed; the server knows a node by the public key it
was given for that node's id. Private keys are written readable by their owner alone.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trustmix.errors import TrustmixError

DAYS = 825
"""How long certificates are good for."""


@dataclass(frozen=True)
class ServerKeys:
    """The folder of the server: the authority's certificate, its own, its key, and the public keys of all nodes."""

    folder: Path

    def __post_init__(self) -> None:
        _check_files(self.folder, ["ca.crt", "server.crt", "server.key", "nodes"])

    @property
    def authority(self) -> Path:
        """The certificate that nodes trust."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    def nodes(self) -> dict[str, bytes]:
        """The public key of each node, by the node's id."""
        return {file.stem: file.read_bytes() for file in sorted((self.folder / "nodes").glob("*.pub"))}


@dataclass(frozen=True)
class NodeKeys:
    """The folder of a node: the authority's certificate and its own private key."""

    folder: Path

    def __post_init__(self) -> None:
        _check_files(self.folder, ["ca.crt", "node.key"])

    @property
    def authority(self) -> Path:
        """The certificate by which the server is known."""
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        """The node's private key."""
        return self.folder / "node.key"


def make_keys(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> None:
    """Make what a deployment needs, or add nodes to it.

    The authority's own key and the folders for server and nodes appear under `folder`; what is there stays as it is.
    """
    server = folder / "server"
    if not (folder / "ca.key").exists():
        if not hosts:
            raise TrustmixError("Say by which name or address nodes reach the server: --host trustmix.example.org.")
        authority_key, server_key = generate_private_key(SECP384R1()), generate_private_key(SECP384R1())
        authority = _certificate("trustmix authority", authority_key, None, [])
        _write(folder / "ca.key", _private(authority_key))
        _write(folder / "ca.crt", _pem(authority))
        names = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))
        certificate = _certificate(hosts[0], server_key, (authority, authority_key), names)
        _write(server / "server.key", _private(server_key))
        _write(server / "server.crt", _pem(certificate))
        _write(server / "ca.crt", _pem(authority))
    for node in nodes:
        if (folder / node).exists():
            raise TrustmixError(f"{folder / node} exists already; keys are never overwritten.")
        key = generate_private_key(SECP384R1())
        _write(folder / node / "node.key", _private(key, ssh=True))
        _write(folder / node / "ca.crt", (folder / "ca.crt").read_bytes())
        _write(server / "nodes" / f"{node}.pub", _public(key))
    (server / "nodes").mkdir(exist_ok=True)


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, EllipticCurvePrivateKey] | None,
    hosts: Sequence[str],
) -> x509.Certificate:
    """A certificate for the key: signed by itself where there is no issuer, an authority's then."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    public = key.public_key()
    signer = key if issuer is None else issuer[1]
    signer_public = signer.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=10))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), True)
        .add_extension(_usage(authority=issuer is None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_public), False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    return builder.sign(signer, hashes.SHA384())


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: EllipticCurvePrivateKey, *, ssh: bool = False) -> bytes:
    """A private key as text: PKCS 8 for TLS, OpenSSH's form for a node, which is what Flower reads."""
    form = PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _public(key: EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _write(file: Path, data: bytes) -> None:
    """Write a file that is not there yet; for its owner's eyes alone."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise TrustmixError(f"Could not write {file}: {error.strerror}.") from error
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)


def _check_files(folder: Path, names: Sequence[str]) -> None:
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise TrustmixError(f"{folder} lacks {', '.join(missing)}; `trustmix keys` makes such a folder.")
