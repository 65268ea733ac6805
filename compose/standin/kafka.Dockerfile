# A stand-in for the official Kafka image: the jars of scripts/kafka.sh, configured by the same KAFKA_* variables.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --user-group appuser && mkdir -p /var/lib/kafka/data && chown appuser:appuser /var/lib/kafka/data
COPY jars /opt/kafka/libs
COPY entrypoint.sh /usr/local/bin/docker-entrypoint.sh
USER appuser
ENTRYPOINT ["docker-entrypoint.sh"]
