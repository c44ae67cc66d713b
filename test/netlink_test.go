package test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// iproute2's rdma asks over netlink, and the daemon answers: the machine's version, the newest and the oldest.
func TestRDMATool(t *testing.T) {
	harness.Need(t, "rdma", "ibv_rc_pingpong", "ibv_srq_pingpong", "rping")
	d := harness.Device(t)
	for name, f := range map[string]rdmaTool{
		"machine": func(t testing.TB, argv ...string) *harness.Process { return d.Launch(t, argv...) },
		"newest": func(t testing.TB, argv ...string) *harness.Process {
			return harness.NewestRoot(t).Launch(t, d, nil, argv...)
		},
		"oldest": func(t testing.TB, argv ...string) *harness.Process {
			return harness.OldestRoot(t).Launch(t, d, nil, argv...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			// It sees its own user's programs in its own process namespace.
			pair := f.programs(t, d)
			f.device(t, d)
			f.objects(t, pair)
			f.refusals(t)
			f.sysfs(t)
		})
	}
}

// programs starts programs that the tool can list, until the test ends. It returns the connected pair.
func (f rdmaTool) programs(t *testing.T, d *harness.Daemon) [2]*harness.Process {
	t.Helper()
	pair := f.busyPair(t, d, harness.FreePort(t))
	shared := harness.FreePort(t)
	srq := f(t, "ibv_srq_pingpong", "-g", "0", "-p", strconv.Itoa(shared), "-q", "4")
	harness.Listening(t, srq, shared, minute)
	const managed = 7174
	d.AwaitVacant(t, managed)
	listener := f(t, "rping", "-s", "-a", "127.0.0.1")
	d.AwaitManaged(t, listener, managed)
	t.Cleanup(func() {
		listener.End()
		srq.End()
		for _, p := range pair {
			p.End()
		}
	})
	return pair
}

// busyPair is a connected pingpong that does not end by itself.
func (f rdmaTool) busyPair(t *testing.T, d *harness.Daemon, port int) [2]*harness.Process {
	t.Helper()
	argv := []string{"ibv_rc_pingpong", "-g", "0", "-e", "-n", "1000000000", "-p", strconv.Itoa(port)}
	server := f(t, argv...)
	harness.Listening(t, server, port, minute)
	before := d.Traffic(t)
	client := f(t, append(argv, "127.0.0.1")...)
	if !harness.Poll(minute, func() bool { return d.Traffic(t).Bytes > before.Bytes }) {
		t.Fatalf("no traffic\n%s\n%s", server.Output(), client.Output())
	}
	return [2]*harness.Process{server, client}
}

// rdmaTool starts a program that asks.
type rdmaTool func(t testing.TB, argv ...string) *harness.Process

// row is an object as `rdma -j` prints it.
type row map[string]any

func (r row) text(key string) string {
	if v, ok := r[key].(float64); ok {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(r[key])
}

// rows is what `rdma -j ARGS` prints.
func (f rdmaTool) rows(t testing.TB, args ...string) (out []row) {
	t.Helper()
	p := f(t, append([]string{"rdma", "-j"}, args...)...)
	p.OK(t, minute)
	if strings.TrimSpace(p.Stdout()) == "" { // the oldest prints nothing for an empty list
		return nil
	}
	if err := json.Unmarshal([]byte(p.Stdout()), &out); err != nil {
		t.Fatalf("rdma -j %s: %v\n%s", strings.Join(args, " "), err, p.Output())
	}
	return out
}

// device checks the answers about the device itself.
func (f rdmaTool) device(t *testing.T, d *harness.Daemon) {
	link := f.rows(t, "link", "show")
	if len(link) != 1 || link[0].text("ifname") != "rxe0" || link[0].text("port") != "1" || link[0].text("state") != "ACTIVE" ||
		link[0].text("physical_state") != "LINK_UP" || link[0].text("netdev") != "lo" {
		t.Errorf("rdma link: %v", link)
	}
	dev := f.rows(t, "dev", "show")
	if len(dev) != 1 || dev[0].text("ifname") != "rxe0" || dev[0].text("node_type") != "ca" || len(dev[0].text("node_guid")) != 19 {
		t.Errorf("rdma dev: %v", dev)
	}
	// The same GUID by netlink and by sysfs.
	guid, err := os.ReadFile(d.Socket + ".d/sys/class/infiniband/rxe0/node_guid")
	if err != nil || strings.TrimSpace(string(guid)) != dev[0].text("node_guid") {
		t.Errorf("node GUID %s by netlink, %s in sysfs (%v)", dev[0].text("node_guid"), guid, err)
	}
	if out := f(t, "rdma", "system", "show").OK(t, minute); !strings.Contains(out, "netns shared") {
		t.Errorf("rdma system: %s", out)
	}
	if out := f(t, "ibv_devices").OK(t, minute); strings.Count(out, "rxe0") != 1 {
		t.Errorf("ibv_devices: %s", out)
	}
	counters := f.rows(t, "statistic", "show")
	if len(counters) != 1 || counters[0].text("sent_pkts") == "0" || counters[0].text("rdma_sends") == "<nil>" {
		t.Errorf("rdma statistic: %v", counters)
	}
}

// objects checks the answers about the programs' objects.
func (f rdmaTool) objects(t *testing.T, pair [2]*harness.Process) {
	mine := map[string]row{} // queue pairs of the pair, by number
	for _, q := range f.rows(t, "resource", "show", "qp") {
		if q.text("comm") == "ibv_rc_pingpong" && q.text("state") == "RTS" {
			mine[q.text("lqpn")] = q
		}
	}
	if len(mine) != len(pair) {
		t.Errorf("rdma resource show qp: %v, want the two of the pingpong", mine)
	}
	for n, q := range mine {
		if peer, ok := mine[q.text("rqpn")]; !ok || peer.text("rqpn") != n || q.text("type") != "RC" || q.text("pid") == peer.text("pid") {
			t.Errorf("queue pair %v has the peer %v", q, peer)
		}
	}
	least := map[string]int{"pd": 3, "cq": 3, "qp": 6, "mr": 3, "ctx": 3, "srq": 1, "cm_id": 1}
	summary := f.rows(t, "resource", "show")
	for kind, n := range least {
		if kind == "ctx" || kind == "srq" { // unknown to the oldest
			if out := f(t, "rdma", "resource", "help").OK(t, minute); !strings.Contains(out, kind) {
				continue
			}
		}
		list := f.rows(t, "resource", "show", kind)
		if len(list) < n {
			t.Errorf("rdma resource show %s: %d objects, want at least %d: %v", kind, len(list), n, list)
		}
		for _, o := range list {
			if o.text("comm") == "<nil>" || o.text("pid") == "<nil>" {
				t.Errorf("rdma resource show %s: whose is %v?", kind, o)
			}
		}
		if got := summary[0].text(kind); got != strconv.Itoa(len(list)) {
			t.Errorf("rdma resource: %s %s, and there are %d", kind, got, len(list))
		}
	}
	for _, id := range f.rows(t, "resource", "show", "cm_id") {
		if id.text("state") != "LISTEN" || id.text("ps") != "TCP" || id.text("src-addr") != "127.0.0.1:7174" {
			t.Errorf("identifier %v", id)
		}
	}
	for n := range mine { // one by its number
		if one := f.rows(t, "resource", "show", "qp", "lqpn", n); len(one) != 1 || one[0].text("lqpn") != n {
			t.Errorf("rdma resource show qp lqpn %s: %v", n, one)
		}
	}
}

// refusals checks that nothing can be changed, and the reasons.
func (f rdmaTool) refusals(t *testing.T) {
	for _, args := range []string{"dev set rxe0 name other", "link add other type rxe netdev lo", "link delete rxe0", "system set netns exclusive"} {
		p := f(t, append([]string{"rdma"}, strings.Fields(args)...)...)
		if code := p.Wait(t, minute); code == 0 || !strings.Contains(p.Output(), "not supported") {
			t.Errorf("rdma %s: exit %d\n%s", args, code, p.Output())
		}
	}
}

// sysfs checks that libibverbs finds the same device where netlink has no answer.
func (f rdmaTool) sysfs(t *testing.T) {
	deaf := harness.CompileWith(t, "nonetlink", "gcc", "-shared", "-fPIC")
	by := f(t, "ibv_devinfo", "-v").OK(t, minute)
	without := f(t, "sh", "-c", "LD_PRELOAD="+deaf+":$LD_PRELOAD exec ibv_devinfo -v").OK(t, minute)
	if by != without || !strings.Contains(by, "PORT_ACTIVE") {
		t.Errorf("over netlink:\n%s\nin sysfs:\n%s", by, without)
	}
	if p := f(t, "sh", "-c", "LD_PRELOAD="+deaf+":$LD_PRELOAD exec rdma link"); p.Wait(t, minute) == 0 {
		t.Errorf("rdma without netlink prints %s", p.Output())
	}
}

// A program sees its own user's objects that its process namespace shows.
func TestRDMAToolSeesItsOwn(t *testing.T) {
	harness.Need(t, "rdma", "ibv_rc_pingpong", "unshare")
	if os.Getuid() != 0 {
		t.Skip("needs a second user")
	}
	d := harness.Start(t, harness.Options{Args: []string{"--mode", "0666"}})
	port := harness.FreePort(t)
	p := d.Launch(t, "ibv_rc_pingpong", "-g", "0", "-p", strconv.Itoa(port))
	harness.Listening(t, p, port, minute)
	defer p.End()
	root := rdmaTool(func(t testing.TB, argv ...string) *harness.Process { return d.Launch(t, argv...) })
	nobody := rdmaTool(func(t testing.TB, argv ...string) *harness.Process {
		return harness.At(d.Socket, harness.Nobody()).Launch(t, argv...)
	})
	container := rdmaTool(func(t testing.TB, argv ...string) *harness.Process {
		return d.Launch(t, append([]string{"unshare", "--pid", "--fork", "--mount", "--mount-proc", "--"}, argv...)...)
	})
	for name, c := range map[string]struct {
		who  rdmaTool
		want int
	}{"same user": {root, 1}, "another user": {nobody, 0}, "another process namespace": {container, 0}} {
		if got := c.who.rows(t, "resource", "show", "qp"); len(got) != c.want {
			t.Errorf("%s: %v, want %d queue pairs", name, got, c.want)
		}
		if got := c.who.rows(t, "resource", "show"); got[0].text("qp") != strconv.Itoa(c.want) {
			t.Errorf("%s: %v, want %d queue pairs", name, got, c.want)
		}
		if got := c.who.rows(t, "link", "show"); len(got) != 1 {
			t.Errorf("%s: %d links, want 1", name, len(got))
		}
	}
	// Inside the namespace the tool sees its own program, with its number there.
	inside := d.Launch(t, "unshare", "--pid", "--fork", "--mount", "--mount-proc", "sh", "-c",
		`ibv_rc_pingpong -g 0 -p `+strconv.Itoa(harness.FreePort(t))+` >/dev/null & p=$!; i=0
		until rdma resource show qp | grep -q "pid $p "; do i=$((i + 1)); [ $i -lt 600 ] || exit 1; sleep 0.1; done
		rdma resource show qp; kill $p`)
	if out := inside.OK(t, minute); strings.Count(out, "lqpn") != 1 {
		t.Errorf("inside: %s", out)
	}
}
