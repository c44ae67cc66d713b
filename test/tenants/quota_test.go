package tenants

import (
	"fmt"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/test/harness"
)

const quotaFile = `
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: red}
spec: {quota: {%s}}
---
apiVersion: vrdma.io/v1
kind: Tenant
metadata: {name: blue}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: net, tenant: red}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: Network
metadata: {name: net, tenant: blue}
spec: {subnets: [10.1.0.0/24]}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: red}
spec: {network: net}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: b, tenant: red}
spec: {network: net}
---
apiVersion: vrdma.io/v1
kind: NIC
metadata: {name: a, tenant: blue}
spec: {network: net}
`

// A tenant's quota applies to all of its NICs, the owner's programs included, and to no other tenant. The log and an
// event name the quota.
func TestQuotas(t *testing.T) {
	d := start(t, fmt.Sprintf(quotaFile, "devices: 4, queuePairs: 5, completionQueues: 6, memory: 8Mi"))
	program := harness.Compile(t, "quota")
	// One device is red/b's, and one the program's own.
	fatal := d.at("red/b").launch(t, harness.Compile(t, "fatal")) // one device, two QPs, two CQs, 64 KiB
	fatal.Printed(t, "ready", minute)
	want := "devices 2 EAGAIN\ncqs 4 EAGAIN\nqps 3 EAGAIN\nmemory 7 ENOMEM\n"
	if got := d.at("red/a").launch(t, program, "limits").OK(t, minute); got != want {
		t.Errorf("red/a gets\n%swant\n%s", got, want)
	}
	for _, kind := range []string{"open devices", "queue pairs", "completion queues", "bytes of registered memory"} {
		if !strings.Contains(d.noted(&d.quotas), "red: tenant red may have") || !strings.Contains(d.noted(&d.quotas), kind) {
			t.Errorf("events: %s\nwant the quota of red on %s", d.noted(&d.quotas), kind)
		}
		if !strings.Contains(d.log.String(), kind) {
			t.Errorf("the log does not name %s", kind)
		}
	}
	if got, want := d.at("blue/a").launch(t, program, "limits").OK(t, minute), "devices 64 all\ncqs 64 all\nqps 64 all\nmemory 64 all\n"; got != want {
		t.Errorf("blue/a gets\n%swant\n%s", got, want)
	}
	// A higher quota also applies to running programs.
	d.gone(t, "red/a")
	d.apply(t, strings.SplitN(fmt.Sprintf(quotaFile, "queuePairs: 20"), "---", 2)[0])
	if got := d.at("red/a").launch(t, program, "limits").OK(t, minute); !strings.Contains(got, "qps 18 EAGAIN\n") || !strings.Contains(got, "memory 64 all") {
		t.Errorf("with a larger quota red/a gets\n%s", got)
	}
}

// Commands above the tenant's rate wait, and are answered.
func TestCommandPace(t *testing.T) {
	d := start(t, fmt.Sprintf(quotaFile, "commands: 60"))
	out := d.at("red/a").launch(t, harness.Compile(t, "quota"), "pace").OK(t, minute)
	var n, ms int
	if _, err := fmt.Sscanf(out, "commands %d in %d ms", &n, &ms); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Sixty may come at once, and the rest sixty a second: 64, and a few to open the device, take
	// a twentieth of a second at least.
	if ms < 50 {
		t.Errorf("%d commands took %d ms, want some of them to wait", n, ms)
	}
	t.Logf("%d commands, 60 a second: %d ms", n, ms)
	// A NIC whose commands wait for minutes can be removed at once.
	d.apply(t, strings.SplitN(fmt.Sprintf(quotaFile, "commands: 1"), "---", 2)[0])
	p := d.at("red/a").launch(t, harness.Compile(t, "quota"), "pace")
	if !harness.Poll(minute, func() bool { return len(d.provisioner.Users(key("red/a"))) > 0 }) {
		t.Fatal("the program does not come")
	}
	if err := d.remove("red/a", true); err != nil {
		t.Fatal(err)
	}
	if p.Wait(t, minute) == 0 {
		t.Errorf("a program without a device ends well:\n%s", p.Output())
	}
}

// Connections count at both ends. One above the quota is refused at once, with an errno.
func TestConnectionQuota(t *testing.T) {
	harness.Need(t, "rping")
	d := start(t, fmt.Sprintf(quotaFile, "connections: 2"))
	server := d.at("red/b").launch(t, "rping", "-s", "-P", "-a", "10.1.0.2")
	d.listening(t, "red/b")
	first := d.at("red/a").launch(t, "rping", "-c", "-a", "10.1.0.2")
	held := func() (n uint64) {
		for _, l := range d.ledger.Usage() {
			if l.Whose == "tenant red" && l.Kind == budget.Connections {
				n = l.Used
			}
		}
		return n
	}
	if !harness.Poll(minute, func() bool { return held() == 2 }) {
		t.Fatalf("red holds %d connections, want 2\n%s", held(), first.Output())
	}
	second := d.at("red/a").launch(t, "rping", "-c", "-a", "10.1.0.2", "-C", "1")
	second.Printed(t, "rdma_connect: Resource temporarily unavailable", minute) // after that rping waits for ever
	second.End()
	// The event is written after the program was told.
	if !harness.Poll(minute, func() bool { return strings.Contains(d.noted(&d.quotas), "connections of rdma_cm") }) {
		t.Errorf("events: %s\nwant the quota of red on connections", d.noted(&d.quotas))
	}
	first.End()
	if !harness.Poll(minute, func() bool { return held() == 0 }) {
		t.Errorf("red holds %d connections when none is left", held())
	}
	server.End()
}
