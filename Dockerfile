# syntax=docker/dockerfile:1
FROM python:3.13-slim AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The pinned versions, the record kernel compiled.
RUN python -m venv /opt/kopgate \
    && /opt/kopgate/bin/pip install --no-cache-dir --constraint constraints.txt . \
    && /opt/kopgate/bin/python -c "import compat.records._kernel, gateway.wire._plain"

FROM python:3.13-slim
RUN useradd --system --uid 10001 --user-group --no-create-home kopgate \
    && install --directory --owner=kopgate --group=kopgate --mode=0750 /data
COPY --from=build /opt/kopgate /opt/kopgate
ENV PATH=/opt/kopgate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KOPGATE_STORE=lmdb:/data \
    KOPGATE_LISTENERS=PLAINTEXT://0.0.0.0:9092 \
    KOPGATE_ADVERTISED=PLAINTEXT://localhost:9092
USER kopgate
WORKDIR /data
VOLUME /data
EXPOSE 9092
# A connection, and nothing more: it asks for no log-in and leaves no line in the log.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9092), 2).close()"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["kopgate"]
CMD ["serve"]
