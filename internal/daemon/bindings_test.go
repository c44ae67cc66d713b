package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// The next daemon of the same boot finds the bindings; an unreadable file counts as empty.
func TestBindings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vrdma.sock.bound")
	web := tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "web"}
	db := tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "db"}
	since := time.Now().Add(-time.Hour).Round(0)
	open := func() *bindings {
		b := new(bindings)
		if err := b.read(path); err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := open()
	if err := b.write([]savedBound{
		{control.Binding{NIC: web, Cookie: 7, Namespace: "/proc/1/ns/net", Container: "c1", Plug: true, Ends: true}, since},
		{control.Binding{NIC: db, Cookie: 8, Container: "c2"}, since},
	}); err != nil {
		t.Fatal(err)
	}
	b = open()
	if list := b.of(web); len(list) != 1 || list[0].Cookie != 7 || !list[0].Ends || !list[0].Since.Equal(since) || list[0].Name != "container c1" {
		t.Errorf("bound: %+v", list)
	}
	if list := b.of(web); len(list) != 0 {
		t.Errorf("once more: %+v", list)
	}
	if list := b.toPlug(); len(list) != 1 || list[0].NIC != web {
		t.Errorf("interfaces of %+v", list)
	}
	// A NIC that is not declared yet keeps its binding.
	if err := b.write(nil); err != nil {
		t.Fatal(err)
	}
	b = open()
	if len(b.of(web)) != 0 || len(b.left) != 1 {
		t.Errorf("left: %+v", b.left)
	}
	if gone := b.drop(&control.Binding{Container: "c2"}); len(gone) != 1 || gone[0].NIC != db {
		t.Errorf("dropped: %+v", gone)
	}
	if err := b.write(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("nothing is bound, and there is a file")
	}
	// The daemon neither trusts nor waits for a file that another user could have put there.
	if err := os.WriteFile(path, []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(path, 0o666), new(bindings).read(path)); err == nil {
		t.Error("a file that others may write to is read")
	}
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := new(bindings).read(path); err == nil {
		t.Error("a pipe is read")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{`{"boot":"another","bound":[{"cookie":7}]}`: "", `{"bound":7}`: "json", "\x00": "invalid"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b := new(bindings)
		if err := b.read(path); len(b.left) != 0 || (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, err, b.left)
		}
	}
}
