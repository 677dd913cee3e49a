# One image for every part; the command says which:
#   docker build -t skyroute .
#   docker run --rm -p 9876:9876 -p 10911:10911 skyroute up --bind 0.0.0.0 --advertise 127.0.0.1 --no-console
#   docker run --rm skyroute nameserver -h
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN python -m venv /opt/skyroute
RUN /opt/skyroute/bin/pip install --no-cache-dir --disable-pip-version-check '.[metrics,console,lz4,zstd,fast]'

FROM python:3.13-slim
RUN useradd --uid 10001 --create-home --home-dir /var/lib/skyroute --shell /usr/sbin/nologin skyroute
COPY --from=build /opt/skyroute /opt/skyroute
ENV PATH=/opt/skyroute/bin:$PATH HOME=/var/lib/skyroute
# Routes, messages, users and logs are kept below the home folder unless settings say otherwise.
USER skyroute
WORKDIR /var/lib/skyroute
VOLUME /var/lib/skyroute
# Name server, broker, console.
EXPOSE 9876 10911 8088
# Who runs a server with --metrics-port 9464 is told how it is.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9464/readyz', timeout=3)"]
ENTRYPOINT ["skyroute"]
CMD ["up", "--bind", "0.0.0.0", "--metrics-port", "9464", "--no-console"]
