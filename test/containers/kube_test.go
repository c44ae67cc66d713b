//go:build kube

package containers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// Kubernetes' own kubelet with containerd, without an API server: pods are files, and the kubelet supplies their
// labels.

const (
	kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
staticPodPath: /etc/kubernetes/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
oomScoreAdj: 0
enforceNodeAllocatable: []
cgroupsPerQOS: false
readOnlyPort: 10255
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
resolvConf: ""
fileCheckFrequency: 1s
`
	containerdConfig = `version = 3
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  enable_cdi = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/bookworm:latest"
`
	network = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true,
 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.200.0.0/24"}]]}}]}`

	team = `{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: red}, spec: {namespaces: [team-a]}}
---
{apiVersion: vrdma.io/v1, kind: Network, metadata: {name: train, tenant: red}, spec: {subnets: [10.7.0.0/16]}}
---
{apiVersion: vrdma.io/v1, kind: Policy, metadata: {name: p, tenant: red}, spec: {nics: {network: train, labels: {role: lonely}}, deny: [{direction: out, peer: {prefix: 10.7.0.0/16}}]}}
`
)

// pod is a static pod whose container asks for a NIC.
func pod(namespace, name, metadata, command string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s%s}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
    - {name: c, image: "localhost/bookworm:latest", imagePullPolicy: Never, command: [sh, -c, %q], resources: {limits: {vrdma.io/nic: 1}}}
`, name, namespace, metadata, command)
}

// TestKubelet: pods of a real kubelet get their NICs from the device plugin.
func TestKubelet(t *testing.T) {
	harness.Need(t, "curl")
	dir := harness.Kubelet(t)
	h := newEngineHost(t, "newer", "bookworm")
	h.serve(t, "--no-default-nic")
	h.apply(t, team)
	h.kubernetes(t, dir, "kubelet")
	plugin := h.background(t, "/opt/kubelet/vrdma-kube", "device-plugin", "--socket", socket, "--node", "node1", "--slots", "8",
		"--pods", "http://127.0.0.1:10255", "--pods-of-kubelet")
	kubelet := h.background(t, "/opt/kubelet/kubelet", "--config", "/etc/kubernetes/kubelet.yaml", "--hostname-override", "node1", "--cert-dir", "/tmp/kubelet-pki")
	plugin.Printed(t, `msg="offered to the kubelet"`, minute) // a static pod that exists before the plugin never gets devices
	server := h.manifest(t, "server", pod("team-a", "server", ", annotations: {vrdma.io/address: 10.7.0.10}", "exec ib_write_bw -R -F -n 500"))
	h.eventually(t, kubelet, "listening", func() bool { return strings.Contains(h.run(t, "vrdma", "status"), "LISTEN") })
	h.manifest(t, "client", pod("team-a", "client", "", "exec ib_write_bw -R -F -n 500 10.7.0.10"))
	h.eventually(t, kubelet, "both have run", func() bool { return h.phase(t, "client") == "Succeeded" && h.phase(t, "server") == "Succeeded" })
	h.manifest(t, "stranger", pod("team-b", "stranger", "", "ibv_devices"))
	h.eventually(t, kubelet, "refused", func() bool { return strings.Contains(kubelet.Output(), "namespace team-b belongs to no tenant") })
	// A restarted kubelet finds the plugin again.
	kubelet.Signal(syscall.SIGKILL)
	kubelet.Wait(t, minute)
	kubelet = h.background(t, "/opt/kubelet/kubelet", "--config", "/etc/kubernetes/kubelet.yaml", "--hostname-override", "node1", "--cert-dir", "/tmp/kubelet-pki")
	h.eventually(t, kubelet, "registered again", func() bool { return strings.Count(plugin.Output(), `msg="offered to the kubelet"`) == 2 })
	h.manifest(t, "third", pod("team-a", "third", ", labels: {role: lonely}", "ibv_devinfo | grep -q rxe0 && exec sleep 1000"))
	h.eventually(t, kubelet, "a third pod", func() bool { return h.phase(t, "third") == "Running" })
	if out := h.run(t, "vrdma", "get", "nics", "-o", "yaml"); !strings.Contains(out, "role: lonely") || !strings.Contains(out, "vrdma.io/node: node1") {
		t.Errorf("NICs:\n%s", out)
	}
	if err := os.Remove(server); err != nil {
		t.Fatal(err)
	}
	h.eventually(t, kubelet, "gone with its pod", func() bool { return !strings.Contains(h.run(t, "vrdma", "get", "nics"), "server") })
}

// kubernetes prepares a host for a kubelet with these Kubernetes programs, and starts containerd.
func (h *host) kubernetes(t *testing.T, dir string, programs ...string) {
	t.Helper()
	h.quietSysctls(t)
	h.run(t, "mkdir", "-p", "/etc/kubernetes/manifests", "/etc/containerd", "/etc/cni/net.d", "/usr/lib/cni", "/var/lib/kubelet", "/opt/kubelet", "/var/log")
	for _, name := range programs {
		h.copy(t, filepath.Join(dir, name), "/opt/kubelet/"+name)
	}
	h.copy(t, filepath.Join(harness.Root(), "bin/vrdma-kube"), "/opt/kubelet/vrdma-kube")
	plugins := filepath.Join(harness.Engines(t, "older"), "usr/lib/cni")
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		h.copy(t, filepath.Join(plugins, name), "/usr/lib/cni/"+name)
	}
	h.write(t, "/etc/containerd/config.toml", containerdConfig)
	h.write(t, "/etc/kubernetes/kubelet.yaml", kubeletConfig)
	h.write(t, "/etc/cni/net.d/10-pods.conflist", network)
	h.background(t, "containerd", "--config", "/etc/containerd/config.toml")
	h.succeeds(t, "ctr", "version")
	h.image(t, "/images/bookworm", "bookworm")
}

// image makes a directory an image of containerd.
func (h *host) image(t *testing.T, dir, name string) {
	t.Helper()
	h.run(t, "sh", "-c", importImage, "sh", dir, name)
}

// importImage makes an image of a directory in containerd, without a registry.
const importImage = `set -e
tar -c -C "$1" . >/tmp/layer.tar
rm -rf /tmp/image
cd /tmp && mkdir -p image/blobs/sha256 && cd image
layer=$(sha256sum ../layer.tar | cut -d' ' -f1); mv ../layer.tar blobs/sha256/$layer
printf '{"architecture":"amd64","os":"linux","config":{"Cmd":["sleep","infinity"],"Env":["PATH=/usr/sbin:/usr/bin:/usr/local/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' $layer >c
config=$(sha256sum c | cut -d' ' -f1); n=$(wc -c <c); mv c blobs/sha256/$config
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' $config $n $layer $(wc -c <blobs/sha256/$layer) >m
manifest=$(sha256sum m | cut -d' ' -f1); n=$(wc -c <m); mv m blobs/sha256/$manifest
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"io.containerd.image.name":"localhost/%s:latest"}}]}' $manifest $n $2 >index.json
echo '{"imageLayoutVersion":"1.0.0"}' >oci-layout
tar -c . | ctr -n k8s.io images import --local -
`

// quietSysctls hides the sysctls that the kubelet writes, because they belong to the whole machine.
func (h *host) quietSysctls(t *testing.T) {
	t.Helper()
	h.run(t, "sh", "-c", `set -e; mkdir -p /tmp/sysctl
for s in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	name=${s%=*} file=/tmp/sysctl/$(echo ${s%=*} | tr / -)
	echo ${s#*=} >$file
	mount --bind $file /proc/sys/$name
done`)
}

func (h *host) copy(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(fmt.Sprintf("/proc/%d/root%s", h.pid, to), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// background starts a server that runs until the test ends.
func (h *host) background(t *testing.T, argv ...string) *harness.Process {
	t.Helper()
	p := h.start(t, argv...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s, last part:\n%s", filepath.Base(argv[0]), harness.Tail(p.Output(), 60))
		}
	})
	return p
}

func (h *host) succeeds(t *testing.T, argv ...string) {
	t.Helper()
	if !harness.Poll(minute, func() bool { time.Sleep(100 * time.Millisecond); return h.start(t, argv...).Wait(t, minute) == 0 }) {
		t.Fatalf("%v never succeeds", argv)
	}
}

// manifest writes a static pod.
func (h *host) manifest(t *testing.T, name, text string) string {
	t.Helper()
	h.write(t, "/etc/kubernetes/manifests/"+name+".yaml", text)
	return fmt.Sprintf("/proc/%d/root/etc/kubernetes/manifests/%s.yaml", h.pid, name)
}

func (h *host) eventually(t *testing.T, kubelet *harness.Process, what string, f func() bool) {
	t.Helper()
	if !harness.Poll(2*minute, func() bool { time.Sleep(300 * time.Millisecond); return kubelet.Ended(0) || f() }) || kubelet.Ended(0) {
		t.Fatalf("not %s in time", what)
	}
}

// phase returns the phase of a static pod, as the kubelet reports it.
func (h *host) phase(t *testing.T, name string) string {
	t.Helper()
	p := harness.Spawn(t, exec.Command("nsenter", "-t", strconv.Itoa(h.pid), "--net", "--", "curl", "-s", "http://127.0.0.1:10255/pods"))
	p.Wait(t, minute)
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct{ Phase string }
		}
	}
	json.Unmarshal([]byte(p.Stdout()), &list) // a starting kubelet does not answer yet
	for _, i := range list.Items {
		if i.Metadata.Name == name+"-node1" {
			return i.Status.Phase
		}
	}
	return ""
}
