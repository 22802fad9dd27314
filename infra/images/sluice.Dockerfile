# Python, a JRE, and the locked requirements; the project itself last, so that it is cheap to change.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
FROM ${PYTHON_IMAGE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home sluice \
    && mkdir /data && chown sluice /data
WORKDIR /project
COPY requirements.lock pyproject.toml README.md ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY sluice sluice
COPY pipelines pipelines
COPY expectations expectations
COPY infra infra
RUN pip install --no-cache-dir --no-deps .
USER sluice
