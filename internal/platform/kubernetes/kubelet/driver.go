package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// A Claim is a ResourceClaim, as the kubelet names it.
type Claim struct{ Namespace, Name, UID string }

func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// An Allocated is a prepared device of a claim.
type Allocated struct {
	Request, Pool, Device string
	Names                 []string // of the Container Device Interface
}

// Claims prepares claims for pods. Both methods are idempotent, also across restarts.
type Claims interface {
	Prepare(ctx context.Context, c Claim) ([]Allocated, error)
	// Unprepare is also called for a claim that was never prepared, or does not exist any more.
	Unprepare(ctx context.Context, c Claim) error
}

// A Driver is a plugin of dynamic resource allocation. The kubelet finds it by a socket in its directory of plugins,
// which it reads when it starts.
type Driver struct {
	Name   string // for example vrdma.io
	Dir    string // the kubelet's
	Claims Claims
	Log    *slog.Logger
	Every  time.Duration // the period of checks of its sockets; a second if zero
}

// Run serves until ctx ends. The kubelet may start, end, and empty its directories.
func (d *Driver) Run(ctx context.Context) error {
	every := d.Every
	if every == 0 {
		every = time.Second
	}
	said := ""
	for {
		err := d.serve(ctx, every)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			d.Log.Warn("not offered to the kubelet, will try again", "driver", d.Name, "error", err)
		}
		if err == nil {
			said = ""
		}
		if !Pause(ctx, every) {
			return nil
		}
	}
}

func (d *Driver) registry() string {
	return filepath.Join(d.Dir, "plugins_registry", d.Name+"-reg.sock")
}

// Own is the driver's directory, which the kubelet does not empty.
func (d *Driver) Own() string { return filepath.Join(d.Dir, "plugins", d.Name) }

func (d *Driver) service() string { return filepath.Join(d.Own(), "dra.sock") }

// serve listens at both sockets, and returns when one of them is gone.
func (d *Driver) serve(ctx context.Context, every time.Duration) error {
	if _, err := os.Stat(filepath.Dir(d.registry())); err != nil {
		return fmt.Errorf("no kubelet: %w", err)
	}
	if err := os.MkdirAll(d.Own(), 0o750); err != nil {
		return err
	}
	a := &claimAnswers{driver: d}
	stop, err := d.offer(d.service(), func(s *grpc.Server) {
		dra.RegisterDRAPluginServer(s, a)
		// The messages of v1beta1 are the same, except for a field of v1 that the driver does not use.
		older := dra.DRAPlugin_ServiceDesc
		older.ServiceName = strings.Replace(older.ServiceName, ".v1.", ".v1beta1.", 1)
		s.RegisterService(&older, a)
	})
	if err != nil {
		return err
	}
	defer stop()
	// The kubelet calls as soon as this socket exists, so the other one is made first.
	stop, err = d.offer(d.registry(), func(s *grpc.Server) { registration.RegisterRegistrationServer(s, a) })
	if err != nil {
		return err
	}
	defer stop()
	var own [2]identity
	for i, path := range []string{d.registry(), d.service()} {
		if own[i], err = identify(path); err != nil {
			return err
		}
	}
	d.Log.Info("waiting for the kubelet", "driver", d.Name, "socket", d.registry())
	for Pause(ctx, every) {
		for i, path := range []string{d.registry(), d.service()} {
			if now, err := identify(path); err != nil || now != own[i] {
				d.Log.Info("somebody has removed our socket", "driver", d.Name, "socket", path)
				return nil
			}
		}
	}
	return nil
}

// offer serves at a socket.
func (d *Driver) offer(path string, register func(*grpc.Server)) (stop func(), err error) {
	listener, err := listen(path, d.Name)
	if err != nil {
		return nil, err
	}
	own, err := identify(path)
	if err != nil {
		listener.Close()
		return nil, err
	}
	server := grpc.NewServer()
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return func() {
		server.Stop()
		<-served
		leave(path, own)
	}, nil
}

// claimAnswers answers the kubelet.
type claimAnswers struct {
	registration.UnimplementedRegistrationServer
	dra.UnimplementedDRAPluginServer
	driver *Driver
}

func (a *claimAnswers) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.DRAPlugin, Name: a.driver.Name, Endpoint: a.driver.service(),
		SupportedVersions: []string{dra.DRAPluginService, "v1beta1.DRAPlugin"},
	}, nil
}

func (a *claimAnswers) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.PluginRegistered {
		a.driver.Log.Info("offered to the kubelet", "driver", a.driver.Name)
	} else {
		a.driver.Log.Warn("the kubelet rejects the driver, and will ask again", "driver", a.driver.Name, "error", s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// NodePrepareResources answers for each claim by itself: a failure does not affect the others.
func (a *claimAnswers) NodePrepareResources(ctx context.Context, request *dra.NodePrepareResourcesRequest) (*dra.NodePrepareResourcesResponse, error) {
	all := &dra.NodePrepareResourcesResponse{Claims: make(map[string]*dra.NodePrepareResourceResponse)}
	for _, c := range request.Claims {
		one := &dra.NodePrepareResourceResponse{}
		all.Claims[c.GetUid()] = one
		devices, err := a.driver.Claims.Prepare(ctx, Claim{c.GetNamespace(), c.GetName(), c.GetUid()})
		if err != nil {
			one.Error = err.Error() // the kubelet shows it in the pod's events
			a.driver.Log.Warn("a claim is not ready", "claim", c.GetNamespace()+"/"+c.GetName(), "error", err)
			continue
		}
		for _, d := range devices {
			one.Devices = append(one.Devices, &dra.Device{RequestNames: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device, CdiDeviceIds: d.Names})
		}
	}
	return all, nil
}

// NodeUnprepareResources likewise answers for each claim.
func (a *claimAnswers) NodeUnprepareResources(ctx context.Context, request *dra.NodeUnprepareResourcesRequest) (*dra.NodeUnprepareResourcesResponse, error) {
	all := &dra.NodeUnprepareResourcesResponse{Claims: make(map[string]*dra.NodeUnprepareResourceResponse)}
	for _, c := range request.Claims {
		one := &dra.NodeUnprepareResourceResponse{}
		all.Claims[c.GetUid()] = one
		if err := a.driver.Claims.Unprepare(ctx, Claim{c.GetNamespace(), c.GetName(), c.GetUid()}); err != nil {
			one.Error = err.Error()
			a.driver.Log.Warn("a claim is not taken back", "claim", c.GetNamespace()+"/"+c.GetName(), "error", err)
		}
	}
	return all, nil
}

// listen makes a socket. It replaces the socket of a dead plugin, and leaves one that answers.
func listen(path, what string) (net.Listener, error) {
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%s: another plugin serves %s here: end that one", path, what)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// Only leave removes it: after the kubelet has removed it, the next plugin may use this path.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, nil
}

// leave removes our socket, unless the path is another's by now.
func leave(path string, own identity) {
	if now, err := identify(path); err == nil && now == own {
		os.Remove(path)
	}
}
