package sysfs

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/internal/device/nic"
)

// Addresses change while programs read the tree. Afterwards it equals a new tree, and a file that both have is never missing.
func TestRenew(t *testing.T) {
	dir := t.TempDir()
	n := testNIC()
	tree := Later(filepath.Join(dir, "a.d", "sys"), n, 0o755, func() []Counter { return nil })
	defer tree.Remove()
	if err := tree.Use(); err != nil {
		t.Fatal(err)
	}
	entry := func(a, dev string) nic.GIDEntry {
		return nic.GIDEntry{GID: netip.MustParseAddr(a).As16(), NetDev: dev}
	}
	for name, face := range map[string]nic.Face{
		"one more":  {GIDs: []nic.GIDEntry{entry("192.0.2.1", "eth0"), entry("fd00::1", "eth1"), entry("127.0.0.1", "lo")}, MTU: 3},
		"one less":  {GIDs: []nic.GIDEntry{entry("fd00::1", "eth1"), entry("127.0.0.1", "lo")}, MTU: 3, Rows: []int{1, 2}},
		"none":      {MTU: 3},
		"nowhere":   {GIDs: []nic.GIDEntry{entry("10.1.0.1", "")}, MTU: 3},
		"exchanged": {GIDs: []nic.GIDEntry{entry("192.0.2.9", "eth0"), entry("127.0.0.1", "lo")}, MTU: 3},
	} {
		n.SetFace(face)
		if err := tree.Renew(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		other := testNIC()
		other.SetFace(face)
		fresh := Later(filepath.Join(dir, name, "sys"), other, 0o755, func() []Counter { return nil })
		if err := fresh.Use(); err != nil {
			t.Fatal(err)
		}
		want, got := texts(t, fresh.root), texts(t, tree.root)
		for file, text := range want {
			if got[file] != text {
				t.Errorf("%s: %s is %q, want %q", name, file, got[file], text)
			}
		}
		for file := range got {
			if _, ok := want[file]; !ok {
				t.Errorf("%s: %s is left", name, file)
			}
		}
		for _, c := range []string{"eth0", "eth1", "lo"} {
			at := filepath.Join("class/infiniband/rxe0/device/net", c)
			_, werr := os.Stat(filepath.Join(fresh.root, at))
			if _, err := os.Stat(filepath.Join(tree.root, at)); os.IsNotExist(err) != os.IsNotExist(werr) {
				t.Errorf("%s: interface %s: %v, want %v", name, c, err, werr)
			}
		}
		fresh.Done()
		fresh.Remove()
	}
	tree.Done()
}

// Root of a container that can write to the tree puts a link in place of the file that is about to be written: the file behind
// the link does not change.
func TestLinksAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := testNIC()
	tree := Later(filepath.Join(dir, "a.d", "sys"), n, 0o755, func() []Counter { return nil })
	defer tree.Remove()
	if err := tree.Use(); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(tree.root, "fresh")); err != nil {
		t.Fatal(err)
	}
	n.SetFace(nic.Face{GIDs: []nic.GIDEntry{{GID: netip.MustParseAddr("192.0.2.77").As16(), NetDev: "eth0"}}, MTU: 3})
	if err := tree.Renew(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(victim); string(text) != "precious" {
		t.Errorf("the file behind the link is now %q, %v", text, err)
	}
}

// The address of a NIC gets an interface after the tree was written, and loses it.
func TestRenewInterface(t *testing.T) {
	n := testNIC()
	face := *n.Face()
	for i := range face.GIDs {
		face.GIDs[i].NetDev = ""
	}
	n.SetFace(face)
	tree := Later(filepath.Join(t.TempDir(), "sys"), n, 0o755, func() []Counter { return nil })
	defer tree.Remove()
	if err := tree.Use(); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(tree.root, "class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0")
	for _, name := range []string{"vrdma0", "net1", ""} {
		n.SetNetDev(name)
		if err := tree.Renew(); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if got, _ := os.ReadFile(at); string(got) != name+"\n" && name != "" || name == "" && got != nil {
			t.Errorf("the file says %q, want %q", got, name)
		}
	}
}
