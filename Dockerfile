# The monitor's command line and worker. Kafka is not in here: see docker-compose.yml.
FROM python:3.11.14-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY solver solver
COPY operators operators
COPY topics topics
COPY pipeline pipeline
RUN pip install -c constraints.txt . && rm -rf /src

# Not root, and one folder that it may write to: Faust's data, and what a user mounts.
RUN useradd --system --user-group --create-home --home-dir /var/lib/ontrack ontrack
USER ontrack
WORKDIR /var/lib/ontrack
ENV ONTRACK_DATA_DIR=/var/lib/ontrack/worker
CMD ["ontrack", "--help"]
