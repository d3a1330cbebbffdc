"""Limits in front of Django.

    MIDDLEWARE = ["apportion.django.LimitMiddleware", ...]
    APPORTION = {"url": "http://127.0.0.1:8101"}

``APPORTION`` takes what :class:`apportion.Client` takes, and ``trusted_proxies`` and ``identify`` as
:class:`apportion.wsgi.LimitMiddleware` does (``identify``: a function of the request, or its dotted name).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string

from apportion._client import Client
from apportion._types import Check, InvalidRequest
from apportion.addresses import networks_of
from apportion.web import Headers, check_of, denial, fitted, limit_headers, refusal, wait_s


class LimitMiddleware:
    """One client for all threads of the process."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        options: dict[str, Any] = dict(getattr(settings, "APPORTION", {}))
        if "url" not in options:
            raise ImproperlyConfigured("APPORTION must be a mapping with url: a node, or the balancer before them")
        self._trusted = networks_of(options.pop("trusted_proxies", ()))
        identify = options.pop("identify", None)
        self._identify: Callable[[HttpRequest], Check | None] = (
            import_string(identify) if isinstance(identify, str) else identify or self._by_address
        )
        self._limiter = Client(**options)

    def close(self) -> None:
        """Close the connections to the nodes; a process that ends does so by itself."""
        self._limiter.close()

    def __call__(self, request: HttpRequest) -> HttpResponse:
        check = fitted(self._identify(request))
        if check is None:
            return self._get_response(request)
        try:
            answer = self._limiter.ask(check)
        except InvalidRequest as error:
            return _response(*refusal(error))
        if not answer.allowed:
            return _response(*denial(answer))
        if answer.wait_ms:
            time.sleep(wait_s(answer))
        response = self._get_response(request)
        for name, value in limit_headers(answer):
            response[name] = value
        return response

    def _by_address(self, request: HttpRequest) -> Check:
        forwarded = request.META.get("HTTP_X_FORWARDED_FOR")
        return check_of(
            request.method or "",
            request.path,
            request.META.get("REMOTE_ADDR"),
            [forwarded] if forwarded else [],
            self._trusted,
        )


def _response(status: int, headers: Headers, body: bytes) -> HttpResponse:
    return HttpResponse(body, status=status, headers=dict(headers))
