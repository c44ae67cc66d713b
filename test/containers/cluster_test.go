//go:build kube

package containers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// A cluster is Kubernetes itself on one host: etcd, API server, controllers, scheduler, kubelet, containerd. There is no
// proxy for services: the API server listens at the address of its own service.
type cluster struct {
	*host
	t       *testing.T // the test that it lives as long as
	kubelet *harness.Process
}

const (
	serverAddress = "10.96.0.1"
	inCluster     = "/var/lib/vrdma/vrdma.sock" // where the DaemonSet's daemon is

	account = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://` + serverAddress + `", certificate-authority: /etc/kubernetes/pki/apiserver.crt}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
	tokens = `admin-token,admin,admin,"system:masters"
node-token,system:node:node1,node1,"system:nodes"
`
)

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := harness.Kubelet(t)
	c := &cluster{host: newEngineHost(t, "newer", "bookworm"), t: t}
	c.kubernetes(t, dir, "kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
	c.copy(t, filepath.Join(harness.Unpacked(t, "etcd-server"), "usr/bin/etcd"), "/opt/kubelet/etcd")
	c.run(t, "sh", "-c", "ip link add up0 type bridge && ip addr add 10.199.0.1/24 dev up0 && ip addr add "+serverAddress+"/32 dev up0 && ip link set up0 up")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, "/etc/kubernetes/accounts.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text})))
	c.write(t, "/etc/kubernetes/tokens", tokens)
	c.write(t, "/etc/kubernetes/admin.conf", fmt.Sprintf(account, "admin-token"))
	c.write(t, "/etc/kubernetes/node.conf", fmt.Sprintf(account, "node-token"))
	c.background(t, "/opt/kubelet/etcd", "--data-dir", "/var/lib/etcd", "--unsafe-no-fsync", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379")
	c.background(t, "/opt/kubelet/kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--secure-port", "443", "--advertise-address", "10.199.0.1",
		"--service-cluster-ip-range", "10.96.0.0/16", "--cert-dir", "/etc/kubernetes/pki", "--token-auth-file", "/etc/kubernetes/tokens", "--authorization-mode", "Node,RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", "/etc/kubernetes/accounts.key",
		"--service-account-signing-key-file", "/etc/kubernetes/accounts.key", "--allow-privileged", "--kubelet-preferred-address-types", "InternalIP")
	c.succeeds(t, "/opt/kubelet/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "get", "--raw", "/readyz")
	c.background(t, "/opt/kubelet/kube-controller-manager", "--kubeconfig", "/etc/kubernetes/admin.conf", "--leader-elect=false", "--root-ca-file", "/etc/kubernetes/pki/apiserver.crt",
		"--service-account-private-key-file", "/etc/kubernetes/accounts.key",
		"--controllers", "serviceaccount-controller,root-ca-certificate-publisher-controller,daemonset-controller,resourceclaim-controller,node-lifecycle-controller,taint-eviction-controller,garbage-collector-controller")
	c.background(t, "/opt/kubelet/kube-scheduler", "--kubeconfig", "/etc/kubernetes/admin.conf", "--leader-elect=false")
	c.startKubelet()
	return c
}

func (c *cluster) startKubelet() {
	c.t.Helper()
	c.kubelet = c.background(c.t, "/opt/kubelet/kubelet", "--config", "/etc/kubernetes/kubelet.yaml", "--kubeconfig", "/etc/kubernetes/node.conf",
		"--hostname-override", "node1", "--cert-dir", "/tmp/kubelet-pki", "--node-ip", "10.199.0.1")
}

// kubectl asks the API server as its administrator.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.run(t, append([]string{"/opt/kubelet/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf"}, args...)...)
}

// create makes objects.
func (c *cluster) create(t *testing.T, text string) {
	t.Helper()
	cmd := c.command(0, "/opt/kubelet/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	harness.Spawn(t, cmd).OK(t, minute)
}

// until waits until f, which asks the API server or the daemon, is true.
func (c *cluster) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	if harness.Poll(2*minute, func() bool { time.Sleep(300 * time.Millisecond); return c.kubelet.Ended(0) || f() }) && !c.kubelet.Ended(0) {
		return
	}
	for _, args := range [][]string{{"get", "pods,resourceclaims,resourceslices", "-A", "-o", "wide"}, {"get", "events", "-A"}} {
		t.Logf("kubectl %s:\n%s", strings.Join(args, " "), c.kubectl(t, args...))
	}
	p := c.start(t, "sh", "-c", "tail -n 60 /var/log/pods/vrdma_*/*/*.log")
	p.Wait(t, minute)
	t.Logf("the DaemonSet's log:\n%s", p.Output())
	t.Fatalf("not in time: %s", what)
}

func (c *cluster) phaseOf(t *testing.T, name string) string {
	t.Helper()
	return c.kubectl(t, "get", "pod", "-n", "team-a", name, "--ignore-not-found", "-o", "jsonpath={.status.phase}")
}

// vrdma runs the operator's command as docs/how-to/kubernetes.md describes it.
func (c *cluster) vrdma(t *testing.T, args ...string) string {
	t.Helper()
	return c.kubectl(t, append([]string{"exec", "-n", "vrdma", "ds/vrdma", "--", "vrdma"}, args...)...)
}

// install follows docs/how-to/kubernetes.md, with an image of the binaries built here.
func (c *cluster) install(t *testing.T) {
	t.Helper()
	c.vrdmaImage(t)
	for _, dir := range []string{"kubernetes", "kubernetes-dra"} {
		c.run(t, "mkdir", "-p", "/tmp/contrib/"+dir)
		files, err := filepath.Glob(filepath.Join(harness.Root(), "contrib", dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("manifests: %v, %v", files, err)
		}
		for _, file := range files {
			c.copy(t, file, "/tmp/contrib/"+dir+"/"+filepath.Base(file))
		}
	}
	c.kubectl(t, "apply", "-k", "/tmp/contrib/kubernetes-dra")
	c.declareTeams(t)
}

// vrdmaImage makes an image localhost/vrdma of the binaries built here.
func (c *cluster) vrdmaImage(t *testing.T) {
	t.Helper()
	c.run(t, "sh", "-c", "mkdir -p /tmp/vrdma/usr/local/bin && cp /opt/vrdma/vrdma /opt/vrdma/vrdma-kube /opt/vrdma/*.so /tmp/vrdma/usr/local/bin/")
	c.image(t, "/tmp/vrdma", "vrdma")
}

// declareTeams waits for the daemon of the node, and makes two namespaces and the tenant of one of them.
func (c *cluster) declareTeams(t *testing.T) {
	t.Helper()
	c.until(t, "slots are published", func() bool {
		return strings.Contains(c.kubectl(t, "get", "resourceslices", "-o", "yaml"), "nic-109")
	})
	c.create(t, "{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: team-b}}")
	cmd := c.command(0, "/opt/kubelet/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "exec", "-i", "-n", "vrdma", "ds/vrdma", "--", "vrdma", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(team + "---\n{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: blue}}\n")
	harness.Spawn(t, cmd).OK(t, minute)
	for _, namespace := range []string{"team-a", "team-b"} {
		c.until(t, "service accounts", func() bool {
			return c.kubectl(t, "get", "sa", "-n", namespace, "default", "--ignore-not-found") != ""
		})
	}
}

// signal sends a signal to the processes whose command line starts with a text.
func (c *cluster) signal(t *testing.T, command string, s syscall.Signal) {
	t.Helper()
	c.run(t, "sh", "-c", fmt.Sprintf(`found=
for p in /proc/[0-9]*; do
	[ "$(tr '\0' ' ' <$p/cmdline 2>/dev/null | cut -c1-%d)" = %q ] || continue
	kill -%d ${p#/proc/} && found=1
done
[ -n "$found" ]`, len(command), command, int(s)))
}

// claimed returns a claim and the pod that uses it.
func claimed(namespace, name, parameters, labels, command string) string {
	return fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  devices:
    requests: [{name: nic, exactly: {deviceClassName: vrdma.io}}]
    config: [{requests: [nic], opaque: {driver: vrdma.io, parameters: {apiVersion: vrdma.io/v1, kind: ClaimParameters%[3]s}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: %[2]s, namespace: %[1]s, labels: {%[4]s}}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  resourceClaims: [{name: nic, resourceClaimName: %[2]s}]
  containers:
    - {name: c, image: "localhost/bookworm:latest", imagePullPolicy: Never, command: [sh, -c, %[5]q], resources: {claims: [{name: nic}]}}
`, namespace, name, parameters, labels, command)
}

// TestKubeCluster uses a whole real Kubernetes. The DaemonSet runs as it is installed, with its own rights.
func TestKubeCluster(t *testing.T) {
	c := newCluster(t)
	c.install(t)
	c.slots(t, "110")
	// A claim carries tenant, address and limits.
	c.create(t, claimed("team-a", "server", ", tenant: red, network: train, address: 10.7.0.10, rate: {out: 5Gbit}, limits: {qps: 9}", "role: server",
		"ibv_devinfo -v | grep -q 'max_qp:.*[^0-9]9$' && exec ib_write_bw -R -F -n 500"))
	c.until(t, "listening", func() bool { return strings.Contains(c.vrdma(t, "status"), "LISTEN") })
	nics := c.vrdma(t, "get", "nics", "-o", "yaml")
	for _, want := range []string{"10.7.0.10", "out: 5Gbit", "qps: 9", "role: server", "vrdma.io/claims-of: node1", "tenant: red"} {
		if !strings.Contains(nics, want) {
			t.Errorf("the claim's NIC lacks %q:\n%s", want, nics)
		}
	}
	c.create(t, claimed("team-a", "client", "", "role: client", "exec ib_write_bw -R -F -n 500 10.7.0.10"))
	c.until(t, "both have run", func() bool {
		return c.phaseOf(t, "client") == "Succeeded" && c.phaseOf(t, "server") == "Succeeded"
	})
	// A tenant that the namespace may not use, and a namespace without a tenant.
	c.create(t, claimed("team-a", "foreign", ", tenant: blue", "", "ibv_devices"))
	c.create(t, claimed("team-b", "stranger", "", "", "ibv_devices"))
	c.create(t, claimed("team-a", "mistyped", ", adress: 10.7.0.11", "", "ibv_devices"))
	c.until(t, "refused, with the reason in the events", func() bool {
		events := c.kubectl(t, "get", "events", "-A")
		return strings.Contains(events, `namespace team-a may not use tenant "blue"`) && strings.Contains(events, "namespace team-b belongs to no tenant") && strings.Contains(events, `unknown field "adress"`)
	})
	c.kubectl(t, "delete", "pod,resourceclaim", "-n", "team-a", "foreign", "mistyped", "--wait=false")
	c.kubectl(t, "delete", "pod,resourceclaim", "-n", "team-b", "stranger", "--wait=false")
	t.Run("labels", c.testLabels)
	t.Run("slices", c.testSlices)
	t.Run("restarts", c.testRestarts)
	t.Run("away", c.testAway)
	// Everything is deleted but one pod. A kubelet that has just started and lists no pod with a device is not
	// believed.
	c.kubectl(t, "delete", "pods", "-n", "team-a", "server", "client", "long", "plugged-after", "--wait=false")
	c.kubectl(t, "delete", "resourceclaims", "-n", "team-a", "--all", "--wait=false")
	c.until(t, "nothing is left", func() bool {
		nics := strings.Fields(c.vrdma(t, "get", "nics", "-o", "name"))
		return len(nics) == 1 && strings.Contains(nics[0], "plugged-") && c.records(t) == 0
	})
}

// slots waits until the node has n healthy devices vrdma.io/nic.
func (c *cluster) slots(t *testing.T, want string) {
	t.Helper()
	c.until(t, want+" slots", func() bool {
		return c.kubectl(t, "get", "node", "node1", "-o", `jsonpath={.status.allocatable.vrdma\.io/nic}`) == want
	})
}

// records counts the claims that the driver has stored.
func (c *cluster) records(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/root%s.claims/*.json", c.pid, inCluster))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// testLabels: the labels of a NIC follow those of its pod, both with the device plugin and with a claim.
func (c *cluster) testLabels(t *testing.T) {
	c.create(t, claimed("team-a", "long", "", "role: worker", "exec sleep 1000"))
	c.create(t, pod("team-a", "plugged", ", labels: {role: worker}, annotations: {vrdma.io/network: train, vrdma.io/address: 10.7.0.77}", "exec sleep 1000"))
	c.until(t, "running", func() bool { return c.phaseOf(t, "long") == "Running" && c.phaseOf(t, "plugged") == "Running" })
	count := func(role string) int { return strings.Count(c.vrdma(t, "get", "nics", "-o", "yaml"), "role: "+role) }
	if nics := c.vrdma(t, "get", "nics", "-o", "yaml"); !strings.Contains(nics, "10.7.0.77") {
		t.Errorf("no NIC has the address of the annotation:\n%s", nics)
	}
	if n := count("worker"); n != 2 {
		t.Errorf("%d NICs have role: worker, want 2", n)
	}
	// A policy forbids NICs with the label role: lonely to talk to others. It also applies to open connections.
	in := func(pod string, program ...string) *harness.Process {
		return c.start(t, append([]string{"/opt/kubelet/kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "exec", "-n", "team-a", pod, "--"}, program...)...)
	}
	once := func() *harness.Process {
		p := in("long", "rping", "-c", "-C", "3", "-a", "10.7.0.77")
		p.Wait(t, minute)
		return p
	}
	in("plugged", "rping", "-s", "-P", "-a", "10.7.0.77")
	c.until(t, "listening", func() bool { return strings.Contains(c.vrdma(t, "status"), "10.7.0.77:7174") })
	if p := once(); p.Code() != 0 {
		t.Errorf("a worker does not reach another:\n%s", p.Output())
	}
	talks := in("long", "stdbuf", "-oL", "rping", "-c", "-v", "-a", "10.7.0.77")
	talks.Printed(t, "ping data", minute)
	c.kubectl(t, "label", "pod", "-n", "team-a", "long", "plugged", "role=lonely", "--overwrite")
	c.until(t, "new labels", func() bool { return count("lonely") == 2 && count("worker") == 0 })
	talks.Wait(t, minute) // its connection has ended
	if p := once(); p.Code() == 0 {
		t.Errorf("a pod that is lonely now reaches another:\n%s", p.Output())
	}
	c.kubectl(t, "label", "pod", "-n", "team-a", "long", "plugged", "role=worker", "--overwrite")
	c.until(t, "the old labels", func() bool { return count("lonely") == 0 && count("worker") == 2 })
	c.until(t, "a worker again reaches another", func() bool { return once().Code() == 0 }) // a moment after the pod has the label
}

// testSlices: a node's driver can write the slices of this node and of no other.
func (c *cluster) testSlices(t *testing.T) {
	harness.Need(t, "curl")
	for _, d := range []struct {
		of, on, pool, driver string
		want                 bool
	}{
		{"node1", "node1", "node1", "vrdma.io", true}, {"node1", "node2", "node1", "vrdma.io", false}, {"node1", "node1", "node2", "vrdma.io", false},
		{"", "node1", "node1", "vrdma.io", false}, {"node1", "node1", "node1", "gpu.example.com", false},
	} {
		slice := fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "forged"},
			"spec": {"driver": %q, "nodeName": %q, "pool": {"name": %q, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d"}]}}`, d.driver, d.on, d.pool)
		args := []string{"-t", fmt.Sprint(c.pid), "--net", "--", "curl", "-sk", "-H", "Authorization: Bearer admin-token", "-H", "Content-Type: application/json",
			"-H", "Impersonate-User: system:serviceaccount:vrdma:vrdma"}
		if d.of != "" {
			args = append(args, "-H", "Impersonate-Extra-authentication.kubernetes.io%2fnode-name: "+d.of)
		}
		p := harness.Spawn(t, exec.Command("nsenter", append(args, "-d", slice, "https://"+serverAddress+"/apis/resource.k8s.io/v1/resourceslices?dryRun=All")...))
		p.OK(t, minute)
		if made := strings.Contains(p.Stdout(), `"generation": 1`); made != d.want || !made && !strings.Contains(p.Stdout(), "may write its own slices of that node only") {
			t.Errorf("the driver on %q writes a slice of %s on %s, in pool %s:\n%s", d.of, d.driver, d.on, d.pool, p.Stdout())
		}
	}
}

// testRestarts: the driver, the device plugin and the kubelet are killed.
func (c *cluster) testRestarts(t *testing.T) {
	c.signal(t, "/usr/local/bin/vrdma-kube dra ", syscall.SIGKILL)
	c.signal(t, "/usr/local/bin/vrdma-kube device-plugin ", syscall.SIGKILL)
	c.kubelet.Signal(syscall.SIGKILL)
	c.kubelet.Wait(t, minute)
	c.startKubelet()
	c.create(t, claimed("team-a", "after", "", "", "ibv_devinfo | grep -q rxe0 && exec sleep 1000"))
	c.create(t, pod("team-a", "plugged-after", "", "ibv_devinfo | grep -q rxe0 && exec sleep 1000"))
	c.until(t, "running", func() bool {
		return c.phaseOf(t, "after") == "Running" && c.phaseOf(t, "plugged-after") == "Running" && c.phaseOf(t, "long") == "Running"
	})
	// The pod still has its NIC.
	c.kubectl(t, "exec", "-n", "team-a", "long", "--", "sh", "-c", "ibv_devinfo | grep rxe0")
}

// testAway: a claim is deleted while the daemon does not answer.
func (c *cluster) testAway(t *testing.T) {
	c.signal(t, "/usr/local/bin/vrdma daemon ", syscall.SIGSTOP)
	t.Cleanup(func() { c.signal(t, "/usr/local/bin/vrdma daemon ", syscall.SIGCONT) })
	c.kubectl(t, "delete", "pod,resourceclaim", "-n", "team-a", "after", "--wait=false")
	c.until(t, "the claim is gone", func() bool {
		return c.kubectl(t, "get", "pod,resourceclaim", "-n", "team-a", "after", "--ignore-not-found") == ""
	})
	c.slots(t, "0") // nobody gets one meanwhile
	c.signal(t, "/usr/local/bin/vrdma daemon ", syscall.SIGCONT)
	c.slots(t, "110")
	c.until(t, "the NIC is gone", func() bool { return !strings.Contains(c.vrdma(t, "get", "nics", "-o", "yaml"), "name: after-") })
}
