package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "vrdma.io/nic"
	soon     = time.Minute
)

// A standIn does what the kubelet does with a plugin, in the same order and with the same messages: it accepts the
// registration, connects to the socket of that name, and reads the list of devices.
type standIn struct {
	api.UnimplementedRegistrationServer
	dir    string
	server *grpc.Server
	came   chan *api.RegisterRequest
	refuse error
}

func startKubelet(t *testing.T, dir string) *standIn {
	t.Helper()
	// A starting kubelet removes the sockets of all plugins.
	old, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		os.Remove(path)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &standIn{dir: dir, server: grpc.NewServer(), came: make(chan *api.RegisterRequest, 16)}
	api.RegisterRegistrationServer(k.server, k)
	go k.server.Serve(listener)
	t.Cleanup(k.server.Stop)
	return k
}

func (k *standIn) Register(_ context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	k.came <- r
	return &api.Empty{}, k.refuse
}

// registered waits for the plugin, and calls it back.
func (k *standIn) registered(t *testing.T) api.DevicePluginClient {
	t.Helper()
	select {
	case r := <-k.came:
		if r.Version != "v1beta1" || r.ResourceName != resource || strings.Contains(r.Endpoint, "/") {
			t.Fatalf("registered as %v", r)
		}
		conn, err := grpc.NewClient("unix:"+filepath.Join(k.dir, r.Endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		client := api.NewDevicePluginClient(conn)
		if o, err := client.GetDevicePluginOptions(t.Context(), &api.Empty{}); err != nil || !o.PreStartRequired || !r.Options.GetPreStartRequired() {
			t.Fatalf("options %v, %v", o, err)
		}
		return client
	case <-time.After(soon):
		t.Fatal("the plugin does not register")
		return nil
	}
}

// list reads the next list of devices.
func list(t *testing.T, stream grpc.ServerStreamingClient[api.ListAndWatchResponse]) []string {
	t.Helper()
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, d := range answer.Devices {
		all = append(all, d.ID+" "+d.Health)
	}
	return all
}

// slots are devices that a test changes.
type slots struct {
	now     []Device
	changes chan []Device
}

func (s *slots) Watch(ctx context.Context, tell func([]Device) error) error {
	if err := tell(s.now); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next := <-s.changes:
			if err := tell(next); err != nil {
				return err
			}
		}
	}
}

func (s *slots) Allocate(_ context.Context, ids []string) ([]string, error) {
	var names []string
	for _, id := range ids {
		if !slices.ContainsFunc(s.now, func(d Device) bool { return d.ID == id }) {
			return nil, errors.New("there is no slot " + id)
		}
		names = append(names, "vrdma.io/pod="+id)
	}
	return names, nil
}

func (s *slots) Prepare(_ context.Context, ids []string) error {
	if slices.Equal(ids, []string{"1"}) {
		return nil
	}
	return errors.New("the pod is not known yet")
}

// startPlugin runs a plugin until the test ends, and checks that it leaves nothing.
func startPlugin(t *testing.T, dir string, devices Devices) (stop func()) {
	t.Helper()
	p := &Plugin{Resource: resource, Dir: dir, Devices: devices, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Every: 5 * time.Millisecond}
	return runUntilStop(t, "plugin", p.Run)
}

func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	k := startKubelet(t, dir)
	devices := &slots{now: []Device{{"0", true}, {"1", true}}, changes: make(chan []Device)}
	stop := startPlugin(t, dir, devices)
	client := k.registered(t)
	stream, err := client.ListAndWatch(t.Context(), &api.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := list(t, stream), []string{"0 Healthy", "1 Healthy"}; !slices.Equal(got, want) {
		t.Errorf("devices %v, want %v", got, want)
	}
	devices.changes <- []Device{{"0", false}, {"1", true}}
	if got, want := list(t, stream), []string{"0 Unhealthy", "1 Healthy"}; !slices.Equal(got, want) {
		t.Errorf("devices %v, want %v", got, want)
	}
	answer, err := client.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"1"}}, {DevicesIds: []string{"0"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.ContainerResponses) != 2 || answer.ContainerResponses[0].CdiDevices[0].Name != "vrdma.io/pod=1" || answer.ContainerResponses[1].CdiDevices[0].Name != "vrdma.io/pod=0" {
		t.Errorf("allocated %v", answer)
	}
	_, err = client.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"7"}}}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no slot 7") {
		t.Errorf("a slot that is not there: %v", err)
	}
	if _, err := client.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: []string{"1"}}); err != nil {
		t.Error(err)
	}
	if _, err := client.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: []string{"0"}}); err == nil || !strings.Contains(err.Error(), "not known yet") {
		t.Errorf("a pod that is not known: %v", err)
	}
	stop()
	if _, err := stream.Recv(); err == nil {
		t.Error("the list goes on without a plugin")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "vrdma*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

// Either side may start first, and may restart.
func TestRestarts(t *testing.T) {
	dir := t.TempDir()
	devices := &slots{now: []Device{{"0", true}}}
	stop := startPlugin(t, dir, devices) // before the kubelet
	k := startKubelet(t, dir)
	k.registered(t)
	k.server.Stop()
	k = startKubelet(t, dir)
	client := k.registered(t)
	if _, err := client.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"0"}}}}); err != nil {
		t.Error(err)
	}
	stop()
	startPlugin(t, dir, devices)
	k.registered(t)
}

// The files of a killed plugin do not disturb the next, and a living one is not replaced.
func TestSocket(t *testing.T) {
	dir := t.TempDir()
	k := startKubelet(t, dir)
	left, err := net.Listen("unix", filepath.Join(dir, endpoint(resource)))
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	devices := &slots{now: []Device{{"0", true}}}
	startPlugin(t, dir, devices)
	client := k.registered(t)
	second := &Plugin{Resource: resource, Dir: dir, Devices: devices}
	if _, err := listen(second.socket(), resource); err == nil || !strings.Contains(err.Error(), "another plugin") {
		t.Errorf("a second plugin: %v", err)
	}
	if _, err := client.GetDevicePluginOptions(t.Context(), &api.Empty{}); err != nil {
		t.Errorf("the first one, after a second has tried: %v", err)
	}
}

// The plugin retries at a kubelet that refuses it.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	k := startKubelet(t, dir)
	k.refuse = status.Error(codes.Unavailable, "not now")
	startPlugin(t, dir, &slots{now: []Device{{"0", true}}})
	for range 2 {
		select {
		case <-k.came:
		case <-time.After(soon):
			t.Fatal("the plugin gave up")
		}
	}
}
