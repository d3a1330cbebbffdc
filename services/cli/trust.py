"""By whom servers that are called by https are known."""

from __future__ import annotations

import os
import ssl

from services.cli.output import fail

CA_VARIABLE = "APPORTION_CA"


def trusted() -> ssl.SSLContext | bool:
    """The authorities of the PEM file that APPORTION_CA names, else the usual ones.  Ends us for a wrong file."""
    file = os.environ.get(CA_VARIABLE)
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        fail(f"{CA_VARIABLE} must name a PEM file of certificates: {file}: {error}")
