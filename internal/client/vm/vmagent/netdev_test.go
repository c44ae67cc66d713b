package vmagent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A GID belongs to the interface that has its address in this machine, whatever name the daemon gives.
func TestInterfacesOfGIDs(t *testing.T) {
	a := &Agent{cfg: Config{Tree: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
	const port = "class/infiniband/rxe0/ports/1/"
	put := func(name, content string) {
		t.Helper()
		if err := a.write(vmproto.FileBody(port+name, []byte(content))); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(a.cfg.Tree, port, "gid_attrs/ndevs/0")
	is := func(want string) {
		t.Helper()
		if err := a.nameInterfaces(); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); string(got) != want {
			t.Errorf("GID 0 is of %q, want %q", got, want)
		}
		list, _ := os.ReadDir(filepath.Join(a.cfg.Tree, "class/infiniband/rxe0/device/net"))
		if want == "" && len(list) != 0 || want != "" && (len(list) != 1 || list[0].Name()+"\n" != want) {
			t.Errorf("the device has %v, want %q", list, want)
		}
	}
	put("gid_attrs/ndevs/0", "vrdma0\n")
	put("gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001\n")
	put("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n")
	is("lo\n")
	put("gids/0", "0000:0000:0000:0000:0000:ffff:c633:6401\n") // 198.51.100.1: nobody's
	is("")
	put("gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001\n")
	is("lo\n")
	if _, err := os.Stat(filepath.Join(a.cfg.Tree, port, "gid_attrs/ndevs/1")); err == nil {
		t.Error("an empty row has an interface")
	}
}

// Several GIDs may belong to one interface: the device has the interface while one of them does. An empty row belongs
// to none.
func TestSharedInterface(t *testing.T) {
	a := &Agent{cfg: Config{Tree: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
	const (
		device   = "class/infiniband/rxe0/"
		empty    = "0000:0000:0000:0000:0000:0000:0000:0000\n"
		loopback = "0000:0000:0000:0000:0000:ffff:7f00:0001\n"
	)
	is := func(first, second string, want ...string) {
		t.Helper()
		for i, gid := range []string{first, second} {
			if err := a.write(vmproto.FileBody(fmt.Sprintf(device+"ports/1/gids/%d", i), []byte(gid))); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.nameInterfaces(); err != nil {
			t.Fatal(err)
		}
		for i, gid := range []string{first, second} {
			_, err := os.Stat(filepath.Join(a.cfg.Tree, fmt.Sprintf(device+"ports/1/gid_attrs/ndevs/%d", i)))
			if (err == nil) != (gid != empty) {
				t.Errorf("GID %d is %q, and its interface: %v", i, gid, err)
			}
		}
		list, _ := os.ReadDir(filepath.Join(a.cfg.Tree, device, "device/net"))
		var got []string
		for _, e := range list {
			got = append(got, e.Name())
		}
		if !slices.Equal(got, want) {
			t.Errorf("the device has %q, want %q", got, want)
		}
	}
	is(loopback, loopback, "lo")
	is(empty, loopback, "lo")
	is(loopback, empty, "lo")
	is(empty, empty)
	is(empty, loopback, "lo")
	if err := a.write(vmproto.FileBody(device+"parent", []byte("eth0"))); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(a.cfg.Tree, device, "parent")); err == nil {
		t.Error("the daemon's interface is named in the machine")
	}
}
