# syntax=docker/dockerfile:1
FROM python:3.13-slim AS build
# Versions are not pinned, because Debian removes old ones. This stage is not part of the image.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libkrb5-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# The constraints apply to build dependencies, too. The last command fails if the compiled modules
# are not installed; with -I it does not import them from /src.
RUN python -m venv /opt/kopgate \
    && PIP_CONSTRAINT=/src/constraints.txt PIP_BUILD_CONSTRAINT=/src/constraints.txt \
        /opt/kopgate/bin/pip install --no-cache-dir '.[gssapi]' \
    && /opt/kopgate/bin/python -I -c \
        "import gssapi, records._kernel, gateway._reactor, gateway.protocol.wire._plain, \
gateway.fetch._entry_loops, gateway.fetch._reading, storage._bridge, storage._files, storage._log, \
storage.lmdb._frames, storage.pulsar.client._library"

FROM python:3.13-slim
# The library of python-gssapi.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgssapi-krb5-2 \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 kopgate \
    && useradd --uid 10001 --gid kopgate --no-create-home --home-dir /data \
        --shell /usr/sbin/nologin kopgate \
    && install --directory --owner=kopgate --group=kopgate --mode=0750 /data
COPY --from=build /opt/kopgate /opt/kopgate
ENV PATH=/opt/kopgate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KOPGATE_STORE=lmdb:/data \
    KOPGATE_LISTENERS=PLAINTEXT://0.0.0.0:9092 \
    KOPGATE_ADVERTISED=PLAINTEXT://localhost:9092
# Numeric, so that Kubernetes can verify that the user is not root (runAsNonRoot).
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 9092
# Only opens a connection to the first listener: that needs no login and logs nothing.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, socket; \
        port = os.environ['KOPGATE_LISTENERS'].split(',')[0].rpartition(':')[2]; \
        socket.create_connection(('127.0.0.1', port), 2).close()"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["kopgate"]
CMD ["serve"]
