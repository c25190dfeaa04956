// Command csi-traced-driver is a CSI driver without storage that traces its calls with otelgrpc, as the drivers do that
// trace at all.
//
// It answers what an attacher asks for and nothing else. It runs until it is killed; whoever starts it removes the
// socket.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"google.golang.org/grpc"
)

type options struct {
	socket    string
	name      string
	collector string
	propagate bool
}

func main() {
	var given options
	flag.StringVar(&given.socket, "socket", "", "path of the Unix domain socket to listen on")
	flag.StringVar(&given.name, "name", "traced.csi.test", "name of the driver, and of its service in traces")
	flag.StringVar(&given.collector, "collector", "", "host:port of a collector that takes OTLP over gRPC")
	flag.BoolVar(&given.propagate, "propagate", false,
		"take the trace context that callers send; without it a driver does what most do, which set no propagator")
	flag.Parse()
	if err := run(context.Background(), given); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, given options) error {
	provider, err := newProvider(ctx, given)
	if err != nil {
		return err
	}
	// The default of OpenTelemetry for Go is a propagator that does nothing. It is said here rather than left to the
	// global one, so that this program is the same whatever a library sets.
	var propagator propagation.TextMapPropagator = propagation.NewCompositeTextMapPropagator()
	if given.propagate {
		propagator = propagation.TraceContext{}
	}
	handler := otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(provider),
		otelgrpc.WithPropagators(propagator),
	)
	listener, err := net.Listen("unix", given.socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	server := grpc.NewServer(grpc.StatsHandler(handler))
	csi.RegisterIdentityServer(server, identity{name: given.name})
	csi.RegisterControllerServer(server, controller{})
	return server.Serve(listener)
}

// newProvider exports each span soon after its end: a test waits for it.
func newProvider(ctx context.Context, given options) (*sdktrace.TracerProvider, error) {
	exporter, err := otlptracegrpc.New(ctx,
		otlptracegrpc.WithEndpoint(given.collector),
		otlptracegrpc.WithInsecure(),
	)
	if err != nil {
		return nil, fmt.Errorf("exporter: %w", err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(100*time.Millisecond)),
		sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName(given.name))),
	), nil
}

type identity struct {
	csi.UnimplementedIdentityServer
	name string
}

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name, VendorVersion: "1.0.0"}, nil
}

func (identity) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: service}},
	}}, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

type controller struct {
	csi.UnimplementedControllerServer
}

func (controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{
		{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}},
	}}, nil
}

func (controller) ControllerPublishVolume(
	context.Context, *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func (controller) ControllerUnpublishVolume(
	context.Context, *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
