package tenants

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
	"vrdma.dev/vrdma/test/harness"
)

// A NIC in use is not removed. With force its programs see a removed device, their peers a failed connection, and
// others nothing.
func TestRemove(t *testing.T) {
	harness.Need(t, "ib_send_bw", "ibv_devinfo")
	d := start(t, example(t))
	d.at("red/web").run(t, "ibv_devinfo") // until the loop and the server have allocated what they need
	before := footprint(t, d)

	fatal := d.at("red/web").launch(t, harness.Compile(t, "fatal"))
	fatal.Printed(t, "ready", minute)
	pair := func(of string) *harness.Conversation {
		tcp := harness.FreePort(t)
		server := []string{"ib_send_bw", "-x", "0", "-D", "600", "-s", "4096", "-p", strconv.Itoa(tcp)}
		return harness.Converse(t, tcp, d.at(of+"/web"), server, d.at(of+"/db"), append(server[:len(server):len(server)], "127.0.0.1"))
	}
	red, blue := pair("red"), pair("blue")
	moved := func(of string) uint64 { return d.at(of + "/db").status(t).Counters["sent_pkts"] }
	if !harness.Poll(minute, func() bool { return moved("red") > 1000 && moved("blue") > 1000 }) {
		t.Fatalf("nothing moves: red %d, blue %d packets", moved("red"), moved("blue"))
	}

	err := d.remove("red/web", false)
	var used *tenant.InUse
	if !errors.As(err, &used) || len(used.By) != 2 {
		t.Fatalf("removing a NIC in use: %v, want an InUse by two programs", err)
	}
	for _, want := range []string{"red/web", "fatal", "ib_send_bw", "pid " + strconv.Itoa(fatal.PID()), "uid 0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("in use by: %v: want %q", err, want)
		}
	}
	if fatal.Ended(0) || red.Client.Ended(0) || len(d.at("red/web").status(t).Sessions) != 2 {
		t.Error("a removal that was refused has ended something")
	}

	if err := d.remove("red/web", true); err != nil {
		t.Fatal(err)
	}
	fatal.OK(t, minute)
	for _, p := range []harness.Program{red.Server, red.Client} {
		if !p.Ended(minute) || p.Code() == 0 {
			t.Errorf("%s: %s, want that it fails\n%s", p.Title(), p.Fate(), p.Output())
		}
	}
	at := moved("blue")
	if !harness.Poll(minute, func() bool { return moved("blue") > at+1000 }) || blue.Client.Ended(0) {
		t.Errorf("blue moves nothing any more: %d packets, then %d\n%s", at, moved("blue"), blue.Client.Output())
	}
	dir := filepath.Join(d.place.NICs(), "red", "web")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", dir, err)
	}
	if err := d.remove("red/web", false); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	blue.Client.End()
	blue.Server.End()

	// It can be added again, and works.
	c := d.world.NIC("red", "web")
	if err := d.provisioner.Put(d.world.TenantOf(c), d.world.NetworkOf(c), c); err != nil {
		t.Fatal(err)
	}
	tcp := harness.FreePort(t)
	server, client := pingpong(tcp)
	harness.Converse(t, tcp, d.at("red/web"), server, d.at("red/db"), client).OK(t, minute)
	if !harness.Poll(minute, func() bool { return footprint(t, d).fds <= before.fds && runtime.NumGoroutine() <= before.goroutines }) {
		now := footprint(t, d)
		t.Errorf("the daemon leaks: %d descriptors and %d goroutines, before it were %d and %d", now.fds, now.goroutines, before.fds, before.goroutines)
	}
	if n := d.ledger.Users(); n != 0 && !harness.Poll(minute, func() bool { return d.ledger.Users() == 0 }) {
		t.Errorf("%d accounts are left: %v", n, d.ledger.Usage())
	}
}

// A NIC with another address is another device, so the address changes only while the NIC is unused.
func TestPutAgain(t *testing.T) {
	d := start(t, example(t))
	fatal := d.at("blue/web").launch(t, harness.Compile(t, "fatal"))
	fatal.Printed(t, "ready", minute)
	c := *d.world.NIC("blue", "web")
	c.Spec.Addresses = nil
	c.Spec.Address = d.world.NIC("red", "slow").Spec.Addresses[0]
	put := func() error { return d.provisioner.Put(d.world.TenantOf(&c), d.world.NetworkOf(&c), &c) }
	if err := put(); err == nil || !strings.Contains(err.Error(), "only while no program uses it") || fatal.Ended(0) {
		t.Errorf("another address while it is used: %v, want that it is in use", err)
	}
	fatal.End()
	if !harness.Poll(minute, func() bool { return len(d.provisioner.Users(key("blue/web"))) == 0 }) {
		t.Fatal("a program that has ended still uses the NIC")
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	if out := d.at("blue/web").run(t, "ibv_devinfo", "-v"); !strings.Contains(out, "10.1.0.3") {
		t.Errorf("want the address 10.1.0.3:\n%s", out)
	}
	// Limits of new devices change at once.
	c.Spec.Limits.QPs = 7
	if err := put(); err != nil {
		t.Fatal(err)
	}
	if out := d.at("blue/web").run(t, "ibv_devinfo", "-v"); !strings.Contains(out, "max_qp:\t\t\t\t7\n") {
		t.Errorf("want 7 queue pairs at most:\n%s", out)
	}
}
