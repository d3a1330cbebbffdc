"""FastAPI with a page of documentation that works without the internet: its scripts and styles come from here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

ASSETS = "/docs/assets"


def app_with_docs(**options: Any) -> FastAPI:
    """A FastAPI application with ``/docs`` and ``/openapi.json``.  ``options``: as FastAPI takes them."""
    # The page would otherwise show the verdict of a validator on the internet, and send it this address.
    no_validator = {"validatorUrl": "none"}
    return FastAPIOffline(redoc_url=None, static_url=ASSETS, swagger_ui_parameters=no_validator, **options)
