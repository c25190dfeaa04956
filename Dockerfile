# The operator in an image with nothing else in it:
#
#   docker build -t csi-attacher-operator .
#   docker build -t csi-mock-driver --target csi-mock-driver .

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# rust-toolchain.toml is left out: it would fetch rustfmt and clippy, which are not needed here.
COPY Cargo.toml Cargo.lock build.rs ./
COPY proto proto
COPY src src
# With a target named, the flag is not applied to build scripts and macros, which cannot be linked that way.
RUN target=$(rustc -vV | sed -n 's/^host: //p') \
    && RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --bins --target "$target" \
    && mkdir /out \
    && cp "target/$target/release/csi-attacher-operator" "target/$target/release/csi-mock-driver" /out/

FROM scratch AS csi-mock-driver
LABEL org.opencontainers.image.title="csi-mock-driver" \
      org.opencontainers.image.description="A CSI driver without storage, for tests and demonstrations" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/csi-mock-driver /csi-mock-driver
USER 65532:65532
ENTRYPOINT ["/csi-mock-driver"]

# The last stage is what is built when no other is asked for.
FROM scratch AS csi-attacher-operator
LABEL org.opencontainers.image.title="csi-attacher-operator" \
      org.opencontainers.image.description="Attaches and detaches CSI volumes for many drivers from one pod" \
      org.opencontainers.image.licenses="Apache-2.0"
# For trace collectors with certificates of public authorities; the API server's authority comes with the pod.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/csi-attacher-operator /csi-attacher-operator
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/csi-attacher-operator"]
