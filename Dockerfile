# dsplan in an image of its own, from the Debian package that tools/wheel makes:
#
#   tools/wheel && docker build -t dsplan .
#   docker run --rm -v "$PWD:/work" dsplan simulate llama-3-8b --deepspeed zero3.json --gpus 8 --hardware h100-sxm
#
# The program needs libc alone; OpenBLAS makes `dsplan run` quick.
FROM debian:bookworm-slim
ARG TARGETARCH=amd64
RUN apt-get update && apt-get install -y --no-install-recommends libopenblas0-pthread && rm -rf /var/lib/apt/lists/*
COPY dist/dsplan_*_${TARGETARCH}.deb /tmp/
RUN dpkg -i /tmp/dsplan_*.deb && rm /tmp/dsplan_*.deb && dsplan doctor
WORKDIR /work
ENTRYPOINT ["dsplan"]
CMD ["--help"]
