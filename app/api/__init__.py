"""The endpoints: what is posted to (plain calls), models, health and metrics (FastAPI)."""
