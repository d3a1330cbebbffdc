"""Whether a request comes from this machine's own doing, where no token tells who asks.

A listener on loopback is not reached by other machines, but by every web site that somebody looks at on this one:
its pages may send forms here, and its name may lead here (DNS rebinding), which lets them read the answers.  A
browser says both: the name that was asked in ``Host``, and in ``Sec-Fetch-Site`` or ``Origin`` whose page it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.settings import Listener, is_loopback


def names_loopback(host: str) -> bool:
    """``host``: as the header has it, with or without a port."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return is_loopback(name.lower())


def is_for_own_machine(listener: Listener) -> bool:
    """Whether nobody but this machine is meant to ask without a token: then the names that are used tell."""
    return listener.token is None and not listener.insecure and is_loopback(listener.host)


def why_not_own(method: str, headers: Mapping[str, str], *, by_name: bool) -> str | None:
    """Why a request without a token is not answered; None: it is.  ``headers``: by lower-case names.

    ``by_name``: only names of loopback are answered to.  To follow another site's link is no request of that site:
    it cannot read what is shown.
    """
    host = headers.get("host", "")
    if by_name and not names_loopback(host):
        return (
            "without a token only names of this machine, such as 127.0.0.1 or localhost, are answered to: "
            "set a token, or insecure = true where something else keeps others out"
        )
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        is_followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        ours = site in ("same-origin", "none") or (method == "GET" and is_followed)
    else:  # of an older browser, or of none
        ours = method in ("GET", "HEAD") or origin is None or origin.partition("://")[2] == host
    return None if ours else "another site asks here, and without a token that is not answered"
