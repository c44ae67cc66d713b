package containers

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// memoryOf returns the control group of that name in the hierarchy that accounts for memory.
func memoryOf(group string) string {
	const at = "/sys/fs/cgroup"
	if _, err := os.Stat(at + "/cgroup.controllers"); err == nil {
		return at + group
	}
	return at + "/memory" + group
}

// shared returns the bytes of shared memory that a control group and its children are charged for.
func shared(t *testing.T, group string) uint64 {
	t.Helper()
	f, err := os.Open(filepath.Join(memoryOf(group), "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all, of uint64
	for s := bufio.NewScanner(f); s.Scan(); {
		fmt.Sscanf(s.Text(), "shmem %d", &all)
		fmt.Sscanf(s.Text(), "total_shmem %d", &of) // in a memory hierarchy of cgroup v1, shmem covers this group alone
	}
	return max(all, of)
}

// A container's control group is charged for the memory that the container registers, although the daemon maps it too
// and writes to it. The container is billed for the time that the daemon works for it.
func TestCharged(t *testing.T) {
	const size = 32 << 20 // perftest has two of them
	server, client, daemon := controlGroup(t), controlGroup(t), controlGroup(t)
	h := newHost(t, "bookworm")
	h.serve(t)
	h.run(t, "sh", "-c", fmt.Sprintf("echo %d >%s/cgroup.procs", h.status(t).Pid, memoryOf(daemon)))
	h.apply(t, tenants)
	in := func(nic, group string) container {
		return container{"bookworm", nic, append([]string{"--cgroups", "enabled", "--cgroup-parent", group}, hard...)}
	}
	h.stay(t, "idle", container{"bookworm", "blue.web", nil})
	h.exec(t, "idle", "ibv_devinfo").OK(t, minute)
	before := map[string]uint64{server: shared(t, server), client: shared(t, client), daemon: shared(t, daemon)}
	write := []string{"ib_write_bw", "-R", "-F", "-s", strconv.Itoa(size), "-t", "2", "--run_infinitely", "-D", "1"}
	s := h.start(t, in("red.web", server).argv(write...)...)
	h.listening(t, s, "0.0.0.0:18515")
	c := h.start(t, in("red.db", client).argv(append(write, "10.1.0.1")...)...)
	c.Printed(t, strconv.Itoa(size)+" ", minute) // a second of traffic
	for name, group := range map[string]string{"server": server, "client": client} {
		if after := shared(t, group); after < before[group]+size || after > before[group]+4*size {
			t.Errorf("%d bytes are on the account of the %s's control group, %d before, and it has registered %d", after, name, before[group], 2*size)
		}
	}
	if after := shared(t, daemon); after > before[daemon]+size/4 {
		t.Errorf("%d bytes are on the account of the daemon's control group, %d before", after, before[daemon])
	}
	h.run(t, "podman", "kill", "--all")
	c.Wait(t, minute)
	s.Wait(t, minute)
	spent := make(map[string]uint64)
	for _, r := range h.usage(t).Records {
		spent[r.Tenant+"/"+r.NIC] = r.Used["loop_ns"]
	}
	// The sender causes the daemon's work: the daemon copied gigabytes for the sender, and only listed a device for the
	// idle container.
	if spent["red/db"] <= spent["red/web"] || spent["red/db"] < 10*spent["blue/web"] || spent["blue/web"] == 0 {
		t.Errorf("the daemon's time: %v", spent)
	}
}

// usage returns the bill.
func (h *host) usage(t *testing.T) (report protocol.UsageReport) {
	t.Helper()
	p := h.start(t, "vrdma", "usage", "-o", "json")
	p.OK(t, minute)
	if err := json.Unmarshal([]byte(p.Stdout()), &report); err != nil {
		t.Fatalf("vrdma usage -o json: %v\n%s", err, p.Output())
	}
	return report
}
