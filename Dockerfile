FROM python:3.12.12-slim-bookworm AS build

WORKDIR /src
RUN python -m venv /opt/tandem
COPY pyproject.toml constraints.txt LICENSE README.md ./
COPY protocols protocols
COPY text text
COPY engines engines
COPY routers routers
COPY telemetry telemetry
COPY workers workers
COPY pipeline pipeline
COPY simulator simulator
COPY app app
RUN /opt/tandem/bin/pip install --no-cache-dir --constraint constraints.txt ".[fast,msgpack]"

FROM python:3.12.12-slim-bookworm

RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin tandem
COPY --from=build /opt/tandem /opt/tandem
ENV PATH=/opt/tandem/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('TANDEM_SERVER__PORT', '8000') + '/live', timeout=4)"]
ENTRYPOINT ["tandem"]
CMD ["serve", "--config", "/etc/tandem/tandem.yaml"]
