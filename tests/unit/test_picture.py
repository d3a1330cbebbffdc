"""What a picture takes and refuses."""

from __future__ import annotations

import pytest

from services.picture import usage_document


@pytest.mark.parametrize("value", [b"{", b"[]", b"{}", b'{"region": "us"}'])
def test_what_is_no_usage_message_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        usage_document(value)
