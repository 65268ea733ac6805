# A stand-in for the official PostgreSQL image, of Debian's package: the variables, folder and start-up scripts that
# docker-compose.yaml uses.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql util-linux \
 && rm -rf /var/lib/apt/lists/* \
 && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ \
 && mkdir -p /var/lib/postgresql/data /docker-entrypoint-initdb.d && chown postgres:postgres /var/lib/postgresql/data
COPY compose/standin/postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
USER postgres
ENTRYPOINT ["docker-entrypoint.sh"]
