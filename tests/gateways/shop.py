"""An application as people write them, run by uvicorn: one route behind a limit.  SHOP_NODE: a node's address."""

from __future__ import annotations

import os

from apportion import AsyncClient
from apportion.fastapi import install, limit
from fastapi import Depends, FastAPI

app = FastAPI()
install(app, AsyncClient(os.environ["SHOP_NODE"], timeout_s=20, on_no_answer="deny", batching=True))


@app.get("/exact", dependencies=[Depends(limit("exact", key=lambda request: "everybody"))])
async def exact() -> dict[str, bool]:
    return {"done": True}


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"live": True}
