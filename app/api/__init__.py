"""The endpoints: generation (hot, plain ASGI), models, health and metrics (FastAPI)."""
