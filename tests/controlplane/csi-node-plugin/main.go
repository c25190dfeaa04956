// The part of a CSI driver that runs on nodes, for tests: tells kubelet of a driver and "mounts" its volumes, each of which
// is a memory file system that holds what the driver's controller answered to ControllerPublishVolume.
//
// It must not do more: attaching is the affair of csi-mock-driver and of the operator, which are what is tested.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The file in each volume with its publish context.
const contextFile = "publish-context.json"

type plugin struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	name, nodeID, socket string
}

// What kubelet asks whoever opens a socket in its folder of registrations.
func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              p.name,
		Endpoint:          p.socket,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// Kubelet tries again by itself after a refusal, so that this only says it.
func (p *plugin) NotifyRegistrationStatus(
	_ context.Context, outcome *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	log.Printf("registered: %t %s", outcome.PluginRegistered, outcome.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

func (p *plugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: p.name, VendorVersion: "0.1.0"}, nil
}

func (p *plugin) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (p *plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: p.nodeID}, nil
}

func (p *plugin) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (p *plugin) NodePublishVolume(
	_ context.Context, request *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	target := request.TargetPath
	if target == "" {
		return nil, status.Error(codes.InvalidArgument, "target_path is missing")
	}
	file := filepath.Join(target, contextFile)
	// Kubelet repeats the call; a volume that is there already is left as it is.
	if _, err := os.Stat(file); err == nil {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if err := publish(target, file, request.PublishContext); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	log.Printf("published %s at %s", request.VolumeId, target)
	return &csi.NodePublishVolumeResponse{}, nil
}

func publish(target, file string, publishContext map[string]string) error {
	content, err := json.Marshal(publishContext)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", target, "tmpfs", 0, "size=1m,mode=0777"); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

func (p *plugin) NodeUnpublishVolume(
	_ context.Context, request *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	// Neither a mount nor a folder: that is what a repeated call finds.
	err := syscall.Unmount(request.TargetPath, 0)
	if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := os.Remove(request.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	log.Printf("unpublished %s", request.VolumeId)
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// A socket that an earlier process left would be in the way.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return net.Listen("unix", path)
}

func run() error {
	folder := flag.String("kubelet-dir", "/var/lib/kubelet", "kubelet's root folder")
	name := flag.String("name", "mock.csi.attacher.dev", "name of the driver")
	nodeID := flag.String("node-id", os.Getenv("NODE_NAME"), "node id of the driver on this node")
	flag.Parse()

	p := &plugin{name: *name, nodeID: *nodeID, socket: filepath.Join(*folder, "plugins", *name, "csi.sock")}
	driver, err := listen(p.socket)
	if err != nil {
		return err
	}
	registrar, err := listen(filepath.Join(*folder, "plugins_registry", *name+"-reg.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, p)
	csi.RegisterNodeServer(server, p)
	registration.RegisterRegistrationServer(server, p)

	ends, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	failures := make(chan error, 2)
	for _, socket := range []net.Listener{driver, registrar} {
		go func() { failures <- server.Serve(socket) }()
	}
	select {
	case err := <-failures:
		return err
	case <-ends.Done():
		server.GracefulStop()
		return nil
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
