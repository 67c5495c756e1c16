"""Keys of a deployment: a certificate authority of its own, the server's certificate, and a key pair for every node.

Nodes authenticate the server by its certificate, which the authority has signed. The server authenticates a node by
the public key that is registered for the node's id. Private keys are readable by their owner only.
"""

import datetime
import ipaddress
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trustmix import storage
from trustmix.errors import TrustmixError

log = logging.getLogger(__name__)

VALIDITY_DAYS = 825
"""Days for which certificates are valid."""
CLOCK_MARGIN = datetime.timedelta(days=1)
"""How much earlier than now a certificate is valid: the clock of another machine may be behind."""
WARNING_DAYS = 30
"""Days before a certificate expires in which it is warned about."""


@dataclass(frozen=True)
class ServerKeys:
    """The server's folder: the authority's certificate, its own, its key, and the public keys of all nodes.

    Parameters
    ----------
    folder : Path
        The folder `server` that `make_keys` made.

    Raises
    ------
    TrustmixError
        If a file is missing.
    """

    folder: Path

    def __post_init__(self) -> None:
        _validate_files(self.folder, ["ca.crt", "server.crt", "server.key", "nodes"])

    @property
    def ca_certificate(self) -> Path:
        """The authority's certificate, which nodes trust."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.crt"

    @property
    def private_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    def node_public_keys(self) -> dict[str, bytes]:
        """The public key of each node in OpenSSH's format, by the node's id."""
        return {file.stem: file.read_bytes() for file in sorted((self.folder / "nodes").glob("*.pub"))}


@dataclass(frozen=True)
class NodeKeys:
    """A node's folder: the authority's certificate and its own private key.

    Parameters
    ----------
    folder : Path
        A node's folder that `make_keys` made.

    Raises
    ------
    TrustmixError
        If a file is missing.
    """

    folder: Path

    def __post_init__(self) -> None:
        _validate_files(self.folder, ["ca.crt", "node.key"])

    @property
    def ca_certificate(self) -> Path:
        """The authority's certificate, which has signed the server's."""
        return self.folder / "ca.crt"

    @property
    def private_key(self) -> Path:
        """The node's private key."""
        return self.folder / "node.key"


def make_keys(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> None:
    """Make the keys of a deployment, or add nodes to it; existing files are never changed.

    Parameters
    ----------
    folder : Path
        Gets the authority's key, the folder `server` and one folder for each node.
    hosts : sequence of str
        Names or addresses by which nodes reach the server; needed the first time only.
    nodes : sequence of str
        Client ids of the new nodes.

    Raises
    ------
    TrustmixError
        If there is no host, a node has a key already, or a file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "keys"
    >>> make_keys(folder, ["trustmix.example.org"], ["north"])
    >>> list(ServerKeys(folder / "server").node_public_keys())
    ['north']
    """
    if not (folder / "ca.key").exists():
        _make_authority(folder, hosts)
    server = folder / "server"
    for node in nodes:
        if (folder / node).exists():
            raise TrustmixError(f"{folder / node} exists already; keys are never overwritten.")
        key = generate_private_key(SECP384R1())
        _write(folder / node / "node.key", _private_pem(key, ssh=True))
        _write(folder / node / "ca.crt", (folder / "ca.crt").read_bytes())
        _write(server / "nodes" / f"{node}.pub", _public_openssh(key))
    (server / "nodes").mkdir(exist_ok=True)


def renew_certificates(folder: Path) -> None:
    """Make new certificates of the authority and the server, for the same keys and hosts.

    Nodes that have the old certificate of the authority accept the new one of the server until the old one expires, so
    they can be given the new `ca.crt` one by one. Keys of nodes do not expire.

    Parameters
    ----------
    folder : Path
        The folder that `make_keys` made, with the authority's key.

    Raises
    ------
    TrustmixError
        If a file is missing or is no key or certificate.
    """
    server = folder / "server"
    _validate_files(folder, ["ca.key", "ca.crt"])
    _validate_files(server, ["server.crt", "server.key"])
    ca_key, server_key = _read_key(folder / "ca.key"), _read_key(server / "server.key")
    old = _read_certificate(server / "server.crt")
    hosts = [str(name.value) for name in old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
    ca = _certificate("trustmix authority", ca_key, None, [])
    renewed = _certificate(hosts[0], server_key, (ca, ca_key), hosts)
    for file, certificate in (
        (folder / "ca.crt", ca),
        (server / "ca.crt", ca),
        *((node / "ca.crt", ca) for node in sorted(folder.iterdir()) if (node / "node.key").exists()),
        (server / "server.crt", renewed),
    ):
        storage.write_bytes(file, _certificate_pem(certificate))
        file.chmod(0o600)


def certificate_expiry(file: Path) -> datetime.datetime:
    """When a certificate expires.

    Parameters
    ----------
    file : Path
        The certificate.

    Returns
    -------
    datetime
        In UTC.

    Raises
    ------
    TrustmixError
        If the file is no certificate.
    """
    return _read_certificate(file).not_valid_after_utc


def warn_of_expiry(*files: Path) -> None:
    """Log a warning for each certificate that expires soon.

    Parameters
    ----------
    *files : Path
        The certificates.

    Raises
    ------
    TrustmixError
        If a certificate has expired, or a file is no certificate.
    """
    now = datetime.datetime.now(datetime.UTC)
    for file in files:
        expiry = certificate_expiry(file)
        advice = "`trustmix keys FOLDER --renew` makes new certificates for the same keys"
        if expiry <= now:
            raise TrustmixError(f"The certificate {file} has expired on {expiry.date()}; {advice}.")
        if expiry - now < datetime.timedelta(days=WARNING_DAYS):
            log.warning("the certificate %s expires on %s; %s", file, expiry.date(), advice)


def _read_key(file: Path) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except ValueError as error:
        raise TrustmixError(f"{file} is no private key that `trustmix keys` made.") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise TrustmixError(f"{file} is no private key that `trustmix keys` made.")
    return key


def _read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise TrustmixError(f"{file} is no certificate.") from error


def _make_authority(folder: Path, hosts: Sequence[str]) -> None:
    """Make the authority and the server's certificate."""
    if not hosts:
        raise TrustmixError("Give the name or address by which nodes reach the server: --host trustmix.example.org.")
    ca_key, server_key = generate_private_key(SECP384R1()), generate_private_key(SECP384R1())
    ca = _certificate("trustmix authority", ca_key, None, [])
    names = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))
    certificate = _certificate(hosts[0], server_key, (ca, ca_key), names)
    _write(folder / "ca.key", _private_pem(ca_key))
    _write(folder / "ca.crt", _certificate_pem(ca))
    _write(folder / "server" / "server.key", _private_pem(server_key))
    _write(folder / "server" / "server.crt", _certificate_pem(certificate))
    _write(folder / "server" / "ca.crt", _certificate_pem(ca))


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, EllipticCurvePrivateKey] | None,
    hosts: Sequence[str],
) -> x509.Certificate:
    """The certificate of a key; without an issuer, the self-signed one of an authority."""
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
        .not_valid_before(now - CLOCK_MARGIN)
        .not_valid_after(now + datetime.timedelta(days=VALIDITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), True)
        .add_extension(_key_usage(authority=issuer is None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_public), False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    return builder.sign(signer, hashes.SHA384())


def _key_usage(*, authority: bool) -> x509.KeyUsage:
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


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: EllipticCurvePrivateKey, *, ssh: bool = False) -> bytes:
    """A private key as text: PKCS 8 for TLS, OpenSSH's format for a node, since Flower reads that."""
    form = PrivateFormat.OpenSSH if ssh else PrivateFormat.PKCS8
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _public_openssh(key: EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def _write(file: Path, data: bytes) -> None:
    """Write a new file that only its owner can read."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise TrustmixError(f"Could not write {file}: {error.strerror}.") from error
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)


def _validate_files(folder: Path, names: Sequence[str]) -> None:
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise TrustmixError(f"{folder} lacks {', '.join(missing)}; `trustmix keys` makes such a folder.")
