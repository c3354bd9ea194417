# The monitor's command line, worker, dashboard and alerts. Kafka is not in here: see
# docker-compose.yml.
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY solver solver
COPY operators operators
COPY topics topics
COPY pipeline pipeline
# The variable reaches the environment in which the wheel is built, an option would not.
RUN PIP_CONSTRAINT=/src/constraints.txt pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
    && cp constraints.txt /wheels

FROM python:3.11.14-slim-bookworm
ENV PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -c /wheels/constraints.txt \
    "$(ls /wheels/ontrack-*.whl)[fast,otel,alerts,dashboard]" && rm -rf /wheels

# Not root, by a number that Kubernetes can check, and one folder that it may write to: Faust's
# data, compiled kernels, and what a user mounts.
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/ontrack ontrack
USER 10001
WORKDIR /var/lib/ontrack
ENV HOME=/var/lib/ontrack \
    ONTRACK_DATA_DIR=/var/lib/ontrack/worker \
    NUMBA_CACHE_DIR=/var/lib/ontrack/.cache/numba
EXPOSE 6066 8100 8200
CMD ["ontrack", "--help"]
