package containers

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// The directories that the pods of the DaemonSet share on a node, and the socket.
const (
	nodeState  = "/var/lib/vrdma"
	nodeRun    = "/run/vrdma-kube"
	nodeSocket = nodeState + "/vrdma.sock"
)

// makePod makes a root directory like that of a DaemonSet's pod, and leads a program there. $1: the name, then the program. podman
// cannot make such a container here: without control groups it insists on a pid namespace.
const makePod = `
set -e
name=$1; shift
root=/pods/$name
mkdir -p "$root"
mount -t tmpfs none "$root"
for d in proc sys dev opt/vrdma tmp etc var/lib run; do mkdir -p "$root/$d"; done
mkdir "$root/var/lib/vrdma"
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount --bind /opt/vrdma "$root/opt/vrdma"
mount --bind ` + nodeState + ` "$root` + nodeState + `"
mount --bind ` + nodeRun + ` "$root/run"
echo $$ >/pods/$name.pid
exec chroot "$root" "$@"
`

// A nodePod is a pod of the DaemonSet.
type nodePod struct {
	name string
	p    *harness.Process
}

// pod starts one. It finds no kubelet and no API server.
func (h *host) pod(t *testing.T, name string) *nodePod {
	t.Helper()
	pod := &nodePod{name, h.start(t, "sh", "-c", makePod, "sh", name, "/opt/vrdma/vrdma-kube", "node", "--node", "node1", "--pods", "http://127.0.0.1:1",
		"--", "--container-takeover", "--addr", "127.0.0.1", "--mode", "0666", "--usage", "none")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s, last part:\n%s", name, harness.Tail(pod.p.Output(), 40))
		}
		if !pod.p.Ended(0) {
			h.end(t, pod)
		}
	})
	return pod
}

// inPod runs a program of vrdma in a pod's root directory.
func (h *host) inPod(t *testing.T, pod *nodePod, argv ...string) *harness.Process {
	t.Helper()
	return h.start(t, append([]string{"chroot", "/pods/" + pod.name, "/opt/vrdma/" + argv[0]}, argv[1:]...)...)
}

// ready is the pod's readiness probe.
func (h *host) ready(t *testing.T, pod *nodePod) bool {
	t.Helper()
	return h.inPod(t, pod, "vrdma-kube", "ready").Wait(t, minute) == 0
}

// awaitReady waits for it.
func (h *host) awaitReady(t *testing.T, pod *nodePod) {
	t.Helper()
	if !harness.Poll(minute, func() bool { return pod.p.Ended(0) || h.ready(t, pod) }) || pod.p.Ended(0) {
		t.Fatalf("pod %s does not become ready: %s", pod.name, pod.p.Fate())
	}
}

// end ends a pod as the kubelet does.
func (h *host) end(t *testing.T, pod *nodePod) {
	t.Helper()
	h.run(t, "sh", "-c", "kill -TERM $(cat /pods/"+pod.name+".pid)")
	pod.p.OK(t, minute)
}

// The next pod of a DaemonSet with maxSurge starts beside the old one, and its daemon takes over while programs transfer data in other
// containers. The old pod then waits, and its end changes nothing. When the last daemon ends, a waiting pod serves.
func TestSurge(t *testing.T) {
	harness.BuildKube(t)
	h := newHost(t, "bookworm")
	h.run(t, "mkdir", "-p", nodeState, nodeRun, "/pods")
	old := h.pod(t, "old")
	h.awaitReady(t, old)
	args := strings.Fields(h.inPod(t, old, "vrdma", "nic", "args", "default", "--socket", nodeSocket).OK(t, minute))
	app := func(argv ...string) *harness.Process {
		return h.start(t, podman("bookworm", append([]string{"--network", "host"}, args...), argv...)...)
	}
	// They run until they are stopped, and say then whether there was an error.
	s := app("ib_write_bw", "-F", "--run_infinitely", "-p", "18600")
	if !harness.Poll(minute, func() bool {
		return s.Ended(0) || strings.Contains(h.run(t, "sh", "-c", "cat /proc/net/tcp*"), ":48A8 ")
	}) || s.Ended(0) {
		t.Fatalf("the server does not listen: %s\n%s", s.Fate(), s.Output())
	}
	c := app("stdbuf", "-oL", "ib_write_bw", "-F", "--run_infinitely", "-D", "1", "-p", "18600", "127.0.0.1")
	moves := func(when string) {
		t.Helper()
		before := strings.Count(c.Output(), "65536")
		if !harness.Poll(minute, func() bool { return c.Ended(0) || strings.Count(c.Output(), "65536") > before+1 }) || c.Ended(0) || s.Ended(0) {
			t.Fatalf("%s, the transfer does not go on: %s, %s\n%s", when, c.Fate(), s.Fate(), c.Output())
		}
	}
	moves("before")

	next := h.pod(t, "next")
	h.awaitReady(t, next)
	if h.ready(t, old) {
		t.Error("the old pod is ready, too")
	}
	moves("when the next pod has taken over")
	h.end(t, old)
	moves("when the old pod has ended")
	if !h.ready(t, next) {
		t.Error("the next pod is not ready when the old one has ended")
	}

	third := h.pod(t, "third")
	h.awaitReady(t, third)
	moves("when a third pod has taken over")
	for _, p := range []*harness.Process{c, s} {
		p.End()
	}
	h.end(t, third)
	h.awaitReady(t, next) // no daemon served any more
	if out := app("ibv_devices").OK(t, minute); !strings.Contains(out, "rxe0") {
		t.Errorf("no device:\n%s", out)
	}
}
