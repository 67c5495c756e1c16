"""The public set as a message: it arrives as it is, or not at all."""

import pytest
import torch

from trustmix import TrustmixError
from trustmix.wire import decode_public_set, encode_public_set, fingerprint
from trustmix.wire.framing import add_checksum, encode_frame

INPUTS = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("inputs", [INPUTS, INPUTS.float() / 7, INPUTS.to(torch.int64), INPUTS.transpose(0, 2)])
def test_the_public_set_arrives_as_it_was_sent(inputs: torch.Tensor) -> None:
    found = decode_public_set(encode_public_set(inputs.contiguous()), fingerprint(inputs))
    assert found.dtype == inputs.dtype
    assert torch.equal(found, inputs)


def test_a_public_set_that_was_not_announced_is_refused() -> None:
    with pytest.raises(TrustmixError, match=f"fingerprint {fingerprint(INPUTS)}, but {'0' * 16} was announced"):
        decode_public_set(encode_public_set(INPUTS), "0" * 16)


@pytest.mark.parametrize(
    ("tensors", "header"),
    [
        ({"inputs": INPUTS}, {"kind": "teacher"}),
        ({"inputs": INPUTS}, {"kind": "public", "more": 1}),
        ({"inputs": INPUTS, "more": INPUTS}, {"kind": "public"}),
        ({"outputs": INPUTS}, {"kind": "public"}),
    ],
)
def test_what_is_no_public_set_is_refused_although_its_inputs_are_right(
    tensors: dict[str, torch.Tensor], header: dict[str, str | int]
) -> None:
    with pytest.raises(TrustmixError, match="something else than a public set"):
        decode_public_set(encode_frame(tensors, header), fingerprint(INPUTS))


def test_a_public_set_of_more_than_four_gigabytes_is_refused_before_it_takes_memory() -> None:
    empty = b"\x28\xb5\x2f\xfd\xc0\x00" + (2**32 + 1).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(TrustmixError, match="declares 4294967297 bytes of contents; at most 4294967296 were promised"):
        decode_public_set(add_checksum(empty), fingerprint(INPUTS))
