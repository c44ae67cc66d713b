package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// few claims: one can be prepared.
type few struct{}

func (f *few) Prepare(_ context.Context, c Claim) ([]Allocated, error) {
	if c.Name != "good" {
		return nil, errors.New("there is no " + c.Name)
	}
	return []Allocated{{Request: "nic", Pool: "node1", Device: "nic-7", Names: []string{"vrdma.io/claim=nic-7"}}}, nil
}

func (f *few) Unprepare(_ context.Context, c Claim) error {
	if c.Name == "stuck" {
		return errors.New("stuck")
	}
	return nil
}

// startDriver runs a driver in a kubelet's directory until the test ends.
func startDriver(t *testing.T, dir string) (stop func()) {
	t.Helper()
	d := &Driver{Name: "vrdma.io", Dir: dir, Claims: new(few), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Every: 5 * time.Millisecond}
	return runUntilStop(t, "driver", d.Run)
}

// runUntilStop runs a driver or a plugin until stop is called or the test ends. An error of run fails the test.
func runUntilStop(t *testing.T, what string, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(soon):
			t.Errorf("the %s does not end", what)
		}
	})
	t.Cleanup(stop)
	return stop
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// registers does what the kubelet's plugin manager does with a socket in its registry: it gets the plugin's information,
// connects to the endpoint, and reports the result.
func registers(t *testing.T, dir string) dra.DRAPluginClient {
	t.Helper()
	path := filepath.Join(dir, "plugins_registry", "vrdma.io-reg.sock")
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var info *registration.PluginInfo
	for {
		// A new connection for each attempt, because the answer may come from a driver that is about to end.
		conn := dial(t, path)
		var err error
		if info, err = registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{}); err == nil {
			_, err = registration.NewRegistrationClient(conn).NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("nobody answers at %s: %v", path, err)
		}
		time.Sleep(time.Millisecond)
	}
	if info.Type != "DRAPlugin" || info.Name != "vrdma.io" || !slices.Equal(info.SupportedVersions, []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"}) {
		t.Errorf("registers as %v", info)
	}
	return dra.NewDRAPluginClient(dial(t, info.Endpoint))
}

func kubeletDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"plugins_registry", "plugins"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDriver(t *testing.T) {
	dir := kubeletDir(t)
	stop := startDriver(t, dir)
	client := registers(t, dir)
	claims := []*dra.Claim{{Namespace: "web", Name: "good", Uid: "1"}, {Namespace: "web", Name: "bad", Uid: "2"}}
	prepared, err := client.NodePrepareResources(t.Context(), &dra.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		t.Fatal(err)
	}
	if d := prepared.Claims["1"].GetDevices(); len(d) != 1 || d[0].PoolName != "node1" || d[0].DeviceName != "nic-7" || !slices.Equal(d[0].RequestNames, []string{"nic"}) || !slices.Equal(d[0].CdiDeviceIds, []string{"vrdma.io/claim=nic-7"}) {
		t.Errorf("prepared: %v", prepared)
	}
	if e := prepared.Claims["2"].GetError(); !strings.Contains(e, "no bad") {
		t.Errorf("the other: %v", prepared)
	}
	taken, err := client.NodeUnprepareResources(t.Context(), &dra.NodeUnprepareResourcesRequest{Claims: []*dra.Claim{{Name: "good", Uid: "1"}, {Name: "stuck", Uid: "3"}}})
	if err != nil {
		t.Fatal(err)
	}
	if one, found := taken.Claims["1"]; !found || one.Error != "" || taken.Claims["3"].GetError() == "" {
		t.Errorf("taken back: %v", taken)
	}
	// The previous version of the API, for an older kubelet.
	var older dra.NodePrepareResourcesResponse
	conn := dial(t, filepath.Join(dir, "plugins", "vrdma.io", "dra.sock"))
	if err := conn.Invoke(t.Context(), "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources", &dra.NodePrepareResourcesRequest{Claims: claims[:1]}, &older); err != nil || len(older.Claims["1"].GetDevices()) != 1 {
		t.Errorf("v1beta1: %v, %v", &older, err)
	}
	stop()
	for _, pattern := range []string{"plugins_registry/*", "plugins/vrdma.io/*"} {
		if left, _ := filepath.Glob(filepath.Join(dir, pattern)); left != nil {
			t.Errorf("left behind: %v", left)
		}
	}
}

// Either side may start first, and may restart.
func TestDriverRestarts(t *testing.T) {
	dir := t.TempDir()
	stop := startDriver(t, dir) // before the kubelet, which makes its directories
	if err := os.Mkdir(filepath.Join(dir, "plugins_registry"), 0o755); err != nil {
		t.Fatal(err)
	}
	registers(t, dir)
	stop()
	stop = startDriver(t, dir)
	registers(t, dir)
	// Another program empties the registry, for instance another kubelet's installation.
	if err := os.Remove(filepath.Join(dir, "plugins_registry", "vrdma.io-reg.sock")); err != nil {
		t.Fatal(err)
	}
	registers(t, dir)
	stop()
	// The files of a killed driver do not disturb the next; a living driver is not replaced.
	left, err := listen(filepath.Join(dir, "plugins_registry", "vrdma.io-reg.sock"), "vrdma.io")
	if err != nil {
		t.Fatal(err)
	}
	left.Close()
	startDriver(t, dir)
	registers(t, dir)
	if _, err := listen(filepath.Join(dir, "plugins_registry", "vrdma.io-reg.sock"), "vrdma.io"); err == nil || !strings.Contains(err.Error(), "another plugin") {
		t.Errorf("a second driver: %v", err)
	}
}
