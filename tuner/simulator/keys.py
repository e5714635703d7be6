"""Which requests get in: SGLang's rule for --api-key and --admin-api-key (utils/auth.py:74 of sglang 0.5.23)."""

from __future__ import annotations

import secrets

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_OPEN = ("/health", "/ready", "/metrics")
_STEERING = frozenset({"/flush_cache", "/abort_request"})
"""ADMIN_OPTIONAL: the admin's key where there is one, else the other."""


def middleware_for(api_key: str, admin_api_key: str) -> list[Middleware]:
    """What goes before the handlers: nothing without keys."""
    if not api_key and not admin_api_key:
        return []

    @web.middleware
    async def with_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        wanted = (admin_api_key or api_key) if request.path in _STEERING else api_key
        if not wanted or request.path.startswith(_OPEN) or _bears(request, wanted):
            return await handler(request)
        return web.json_response({"error": "Unauthorized"}, status=401)

    return [with_key]


def _bears(request: web.Request, wanted: str) -> bool:
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return kind.lower() == "bearer" and secrets.compare_digest(key.encode(), wanted.encode())
