package networks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// keyFile is where a host's daemon has its private key.
func (h *host) keyFile(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(h.Socket), "vrdma", "*.key"))
	if err != nil || len(files) != 1 {
		t.Fatalf("host %s has key files %q, want one: %v", h.name, files, err)
	}
	return files[0]
}

// output runs a program that is not ours.
func output(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(argv, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// TestEncryptedNetwork: three hosts find each other's keys in the store. Traffic of the encrypted network is on the
// wire only as WireGuard; other traffic is not encrypted. When a host gets a new key under traffic, the others follow
// the store, the connection goes on, and new connections work.
func TestEncryptedNetwork(t *testing.T) {
	t.Parallel()
	harness.Need(t, "wg", "tshark")
	w := newLabOf(t, 3, 1)
	capture := filepath.Join(t.TempDir(), "wire.pcap")
	stop := w.cable.Capture(t, capture)
	w.a.declare(t, strings.Replace(threeHosts(), "vni: 100,", "vni: 100, encryption: true,", 1))
	for _, h := range w.hosts {
		h.ready(t, "red/"+h.name, "blue/"+h.name)
	}
	ping := func(of string, from, to *host) {
		t.Helper()
		ip := "10.1.0." + string(to.name[0]-'a'+'1')
		p := to.serve(t, of+"/"+to.name, ip, "-C", "10", "-V")
		from.program(t, of+"/"+from.name, "rping", "-c", "-a", ip, "-C", "10", "-V").OK(t, minute)
		p.OK(t, minute)
	}
	ping("red", w.a, w.b)
	ping("red", w.b, w.c)
	ping("red", w.c, w.a)
	ping("blue", w.a, w.b)

	server := w.b.serve(t, "red/b", "10.1.0.2", "-V")
	client := w.a.program(t, "red/a", "rping", "-c", "-a", "10.1.0.2", "-v", "-V")
	client.Printed(t, "ping data", minute)
	const some = 10_000
	for range harness.Pick(2, 10) {
		// As in docs/how-to/encryption.md: a new file replaces the old one.
		private := output(t, "wg", "genkey")
		file := w.b.keyFile(t)
		if err := os.WriteFile(file+".new", []byte(private+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("wg", "pubkey")
		cmd.Stdin = strings.NewReader(private)
		public, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		for _, h := range w.hosts {
			h.says(t, strings.TrimSpace(string(public)), "get", "host", "b", "-o", "yaml")
		}
		w.a.sends(t, "red/a", client, some)
		ping("red", w.b, w.c)
	}
	if server.Ended(0) || client.Ended(0) {
		t.Errorf("the connection did not survive: %s, %s", server.Fate(), client.Fate())
	}
	// An invalid key is reported, and the host keeps its old one.
	if err := os.WriteFile(w.b.keyFile(t), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.b.Process.Printed(t, "keeps its old key", minute)
	w.a.sends(t, "red/a", client, some)
	stop()
	clear := output(t, "tshark", "-r", capture, "-Y", "vxlan", "-T", "fields", "-e", "vxlan.vni")
	for _, vni := range strings.Fields(clear) {
		if vni != "101" {
			t.Fatalf("network %s is on the wire in the clear", vni)
		}
	}
	if sealed := output(t, "tshark", "-r", capture, "-Y", "wg", "-T", "fields", "-e", "wg.type", "-c", "10000"); len(clear) == 0 || len(strings.Fields(sealed)) < 100 {
		t.Errorf("%d packets of the network in the clear and %d of WireGuard's were seen", len(strings.Fields(clear)), len(strings.Fields(sealed)))
	}
}
