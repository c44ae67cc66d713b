package vmagent

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"vrdma/internal/vmline"
)

// A GID is said to be of the interface that has its address in this machine, whatever the daemon calls it.
func TestInterfacesOfGIDs(t *testing.T) {
	a := &Agent{cfg: Config{Tree: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
	const port = "class/infiniband/rxe0/ports/1/"
	put := func(name, content string) {
		t.Helper()
		if err := a.write(vmline.FileBody(port+name, []byte(content))); err != nil {
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
