# The operator's image from a clone, without Rust on the machine that builds it:
#
#   docker build -t registry.example.com/ml/trainingjob-operator/operator:0.2.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --push -t ... .
#
# `make image` makes the same image of programs that are compiled here (Dockerfile.programs).
# Any image with Rust 1.89 or newer, gcc and a C library; RUST names another one.
ARG RUST=docker.io/library/rust:1.95-bookworm
FROM ${RUST} AS build
WORKDIR /source
COPY . .
# Static: the operator's image has nothing else in it, and the agent runs in any image (.cargo/config.toml).
RUN cargo build --release --locked --bin operator --bin agent \
 && mkdir /image \
 && find target -path '*-linux-*/release/operator' -exec cp {} /image/operator ';' \
 && find target -path '*-linux-*/release/agent' -exec {} install --to /image/agent ';' \
 && test -x /image/operator -a -x /image/agent

FROM scratch
COPY --from=build /image/ /
USER 65532:65532
ENTRYPOINT ["/operator"]
