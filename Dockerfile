# The operator in an image with nothing else in it:
#
#   docker build -t csi-attacher-operator .
#   docker build -t csi-attacher-operator:root --build-arg IMAGE_USER=0:0 .    # runs as root, as the sidecar's image does
#   docker build -t csi-mock-driver --target csi-mock-driver .
#
# `make image` makes the same without Docker: it compiles with the same scripts, and reads the last stages of this file. It knows
# the instructions that are used here, and refuses others.

# The slim one has no make, which the allocator's sources need.
FROM rust:1.95-bookworm AS build
WORKDIR /src
# rust-toolchain.toml is left out: it would fetch rustfmt and clippy, which are not needed here.
COPY Cargo.toml Cargo.lock build.rs ./
COPY .cargo .cargo
COPY image/compile image/authorities image/links image/
COPY proto proto
COPY crates crates
COPY tests/mock-driver tests/mock-driver
COPY tests/conformance/Cargo.toml tests/conformance/Cargo.toml
COPY tests/testbed/Cargo.toml tests/testbed/Cargo.toml
COPY tests/model-check/Cargo.toml tests/model-check/Cargo.toml
COPY tests/trace-registry/Cargo.toml tests/trace-registry/Cargo.toml
COPY src src

FROM build AS build-csi-attacher-operator
RUN image/compile /out csi-attacher-operator && image/authorities /out/ca-certificates.crt && image/links /out/links

FROM build AS build-csi-mock-driver
RUN image/compile /out csi-mock-driver

FROM scratch AS csi-mock-driver
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="csi-mock-driver" \
      org.opencontainers.image.description="A CSI driver without storage, for tests and demonstrations" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
COPY --from=build-csi-mock-driver /out/csi-mock-driver /csi-mock-driver
USER 65532:65532
ENTRYPOINT ["/csi-mock-driver"]

# The last stage is what is built when no other is asked for.
FROM scratch AS csi-attacher-operator
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="csi-attacher-operator" \
      org.opencontainers.image.description="Attaches and detaches CSI volumes for many drivers from one pod" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
# For trace collectors with certificates of public authorities; the API server's authority comes with the pod.
COPY --from=build-csi-attacher-operator /out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build-csi-attacher-operator /out/csi-attacher-operator /csi-attacher-operator
# The program by the path of the sidecar's, which some vendors start.
COPY --from=build-csi-attacher-operator /out/links/ /
# Root is for drop-in mode beside drivers that run as root: only root can write to their sockets.
ARG IMAGE_USER=65532:65532
USER $IMAGE_USER
EXPOSE 8080
ENTRYPOINT ["/csi-attacher-operator"]
