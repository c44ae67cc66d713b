package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Dir is the directory of the sockets of the kubelet and its plugins.
const Dir = api.DevicePluginPath

// A Device is one unit of a resource.
type Device struct {
	ID      string
	Healthy bool
}

// Devices are the devices of a resource.
type Devices interface {
	// Watch calls tell with all devices, now and when they change, until ctx ends.
	Watch(ctx context.Context, tell func([]Device) error) error
	// Allocate returns the CDI names of devices. It is idempotent.
	Allocate(ctx context.Context, ids []string) ([]string, error)
	// Prepare is called before a container with these devices starts, or starts again. If it fails, the kubelet tries
	// again later.
	Prepare(ctx context.Context, ids []string) error
}

// A Plugin offers the devices of a resource to the kubelet of this host.
type Plugin struct {
	Resource string // for example vrdma.io/nic
	Dir      string // of the kubelet's sockets
	Devices  Devices
	Log      *slog.Logger

	// The period of checks of the kubelet's directory: a second if zero. Polling suffices. An inotify watch would have
	// to be made again whenever the directory itself is replaced.
	Every time.Duration
}

// Run serves until ctx ends. It survives restarts of the kubelet, and waits for a kubelet that does not run.
func (p *Plugin) Run(ctx context.Context) error {
	every := p.Every
	if every == 0 {
		every = time.Second
	}
	said := ""
	for {
		err := p.serve(ctx, every)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			p.Log.Warn("not offered to the kubelet, will try again", "resource", p.Resource, "error", err)
		}
		if err == nil {
			said = ""
		}
		if !Pause(ctx, every) {
			return nil
		}
	}
}

// serve listens, registers, and returns when the kubelet has ended or has forgotten the plugin.
func (p *Plugin) serve(ctx context.Context, every time.Duration) error {
	kubelet := filepath.Join(p.Dir, filepath.Base(api.KubeletSocket))
	before, err := identify(kubelet)
	if err != nil {
		return fmt.Errorf("no kubelet: %w", err)
	}
	listener, err := listen(p.socket(), p.Resource)
	if err != nil {
		return err
	}
	own, err := identify(p.socket())
	if err != nil {
		listener.Close()
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, &answers{plugin: p, ctx: ctx})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		cancel()
		server.Stop()
		<-served
		leave(p.socket(), own)
	}()
	if err := p.register(ctx, kubelet); err != nil {
		return err
	}
	p.Log.Info("offered to the kubelet", "resource", p.Resource, "socket", p.socket())
	for Pause(ctx, every) {
		if now, err := identify(kubelet); err != nil || now != before {
			p.Log.Info("the kubelet has restarted", "resource", p.Resource)
			return nil
		}
		if now, err := identify(p.socket()); err != nil || now != own {
			p.Log.Info("the kubelet has removed our socket", "resource", p.Resource)
			return nil
		}
	}
	return nil
}

// socket is our socket: the kubelet finds it by its name in its own directory.
func (p *Plugin) socket() string { return filepath.Join(p.Dir, endpoint(p.Resource)) }

func endpoint(resource string) string {
	name := []byte(resource)
	for i, c := range name {
		if c == '/' || c == '.' {
			name[i] = '-'
		}
	}
	return string(name) + ".sock"
}

func (p *Plugin) register(ctx context.Context, kubelet string) error {
	conn, err := grpc.NewClient("unix:"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     endpoint(p.Resource),
		ResourceName: p.Resource,
		Options:      options(),
	})
	if err != nil {
		return fmt.Errorf("the kubelet at %s rejects %s: %w", kubelet, p.Resource, err)
	}
	return nil
}

// An identity distinguishes a file from a later one of the same name. An inode number alone is used again.
type identity struct {
	inode uint64
	made  syscall.Timespec
}

func identify(path string) (identity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return identity{}, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return identity{stat.Ino, stat.Ctim}, nil
}

// Pause waits. It returns false if ctx has ended.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// answers answers the kubelet.
type answers struct {
	api.UnimplementedDevicePluginServer
	plugin *Plugin
	ctx    context.Context // ends with the server, which does not wait for streams
}

func (a *answers) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return options(), nil
}

func options() *api.DevicePluginOptions { return &api.DevicePluginOptions{PreStartRequired: true} }

func (a *answers) PreStartContainer(ctx context.Context, request *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	if err := a.plugin.Devices.Prepare(ctx, request.DevicesIds); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &api.PreStartContainerResponse{}, nil
}

// ListAndWatch sends the devices while the kubelet listens.
func (a *answers) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	err := a.plugin.Devices.Watch(ctx, func(devices []Device) error {
		var list api.ListAndWatchResponse
		for _, d := range devices {
			health := api.Unhealthy
			if d.Healthy {
				health = api.Healthy
			}
			list.Devices = append(list.Devices, &api.Device{ID: d.ID, Health: health})
		}
		return stream.Send(&list)
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Allocate answers for each container of a pod.
func (a *answers) Allocate(ctx context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	var all api.AllocateResponse
	for _, container := range request.ContainerRequests {
		names, err := a.plugin.Devices.Allocate(ctx, container.DevicesIds)
		if err != nil {
			// The kubelet shows this in the pod's events.
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
		var one api.ContainerAllocateResponse
		for _, name := range names {
			one.CdiDevices = append(one.CdiDevices, &api.CDIDevice{Name: name})
		}
		all.ContainerResponses = append(all.ContainerResponses, &one)
	}
	return &all, nil
}
