package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/tunnel"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// Encrypted networks between hosts. As in overlay_test.go each daemon has a store of its own, in which
// the other host is declared, here with its public key.

const redVNI, blueVNI = 100, 101

// sealedLab is two hosts with a NIC each in network red/train, which is encrypted, and in blue/train,
// which is not; both have the same addresses.
func sealedLab(t *testing.T, l layout, underlay func(*host) string) (w *lab, nics map[string][2]tenantNIC) {
	t.Helper()
	harness.Need(t, "nsenter", "ip")
	w = newWire(t, l)
	var keys [2][32]byte
	for i, h := range []*host{w.a, w.b} {
		dir := harness.Directory(t, nil)
		k, err := tunnel.LoadKey(filepath.Join(dir, "host.key"))
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = k.Public()
		h.args = append([]string{"--store", filepath.Join(dir, "store"), "--tunnel-key", filepath.Join(dir, "host.key"), "--underlay", underlay(h)}, l.args...)
		h.start(t, h.args...)
	}
	w.a.declare(t, sealedNetworks(t, 0, underlay(w.b), keys[1]))
	w.b.declare(t, sealedNetworks(t, 1, underlay(w.a), keys[0]))
	nics = make(map[string][2]tenantNIC)
	for _, name := range []string{"red", "blue"} {
		nics[name] = [2]tenantNIC{{w.a, name + "/n1", "10.1.0.1"}, {w.b, name + "/n2", "10.1.0.2"}}
		nics[name+"6"] = [2]tenantNIC{{w.a, name + "/m1", "fd01::1"}, {w.b, name + "/m2", "fd01::2"}}
	}
	return w, nics
}

// sealedNetworks are the objects of sealedLab for one of its hosts: those of overlayLab, where the other
// host has a key and tenant red's network is encrypted.
func sealedNetworks(t *testing.T, self int, at string, key [32]byte) string {
	t.Helper()
	text := networks(self, "other", at)
	for old, with := range map[string]string{
		"type: linux,":                  "type: linux, publicKey: " + tunnel.FormatPublic(key) + ",",
		fmt.Sprintf("vni: %d,", redVNI): fmt.Sprintf("vni: %d, encryption: true,", redVNI),
	} {
		if strings.Count(text, old) != 1 {
			t.Fatalf("%q is not once in\n%s", old, text)
		}
		text = strings.Replace(text, old, with, 1)
	}
	return text
}

// A seen is what a capture of the underlay contains.
type seen struct {
	sealed int            // datagrams of WireGuard's
	vxlan  map[uint32]int // datagrams of a network in the clear
	roce   int
}

// readUnderlay counts the datagrams in a capture of Ethernet.
func readUnderlay(t *testing.T, file string) seen {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcap.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	s := seen{vxlan: map[uint32]int{}}
	for {
		_, f, err := r.Next()
		if err == io.EOF {
			return s
		}
		if err != nil {
			t.Fatal(err)
		}
		var udp []byte
		switch {
		case len(f) > 34+8 && f[12] == 8 && f[13] == 0 && f[14] == 0x45 && f[23] == 17:
			udp = f[34:]
		case len(f) > 54+8 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 17:
			udp = f[54:]
		default:
			continue
		}
		switch binary.BigEndian.Uint16(udp[2:]) {
		case overlay.DefaultTunnelPort:
			s.sealed++
		case overlay.DefaultPort:
			s.vxlan[binary.BigEndian.Uint32(udp[8+4:])>>8]++
		case 4791:
			s.roce++
		}
	}
}

// TestEncrypted: the stock tools between NICs of an encrypted network, IPv4 and IPv6 inside and outside, and over
// rdma_cm. The underlay shows nothing of it, and the daemon's own capture shows the inside.
func TestEncrypted(t *testing.T) {
	harness.Need(t, "rping")
	for _, outer := range []struct {
		name string
		at   func(*host) string
	}{
		{"underlay4", func(h *host) string { return h.ip4 }},
		{"underlay6", func(h *host) string { return h.ip6 }},
	} {
		t.Run(outer.name, func(t *testing.T) {
			w, nics := sealedLab(t, layout{mtu: 1500, cable: true}, outer.at)
			dir := t.TempDir()
			line, inside := filepath.Join(dir, "line.pcap"), filepath.Join(dir, "inside.pcap")
			stop := w.cable.Capture(t, line)
			capture := w.a.startCapture(t, inside)
			for _, name := range []string{"red", "red6"} {
				a, b := nics[name][0], nics[name][1]
				for _, work := range []workload.Workload{
					workload.Pingpong("rc", 4096, 100, ""), workload.Pingpong("ud", 1000, 100, ""),
					workload.Perf("write_bw", "-s 65536 -n 200"), workload.Perf("read_bw", "-s 65536 -n 100"),
				} {
					t.Run(name+"/"+work.Name, func(t *testing.T) { work.Run(t, a.side(), b.side(), minute) })
				}
				t.Run(name+"/rping", func(t *testing.T) { rping(t, a, b) })
			}
			blue := nics["blue"]
			workload.Pingpong("rc", 4096, 20, "").Run(t, blue[0].side(), blue[1].side(), minute)
			w.quiet(t)
			capture.Signal(syscall.SIGINT)
			capture.OK(t, minute)
			stop()
			s := readUnderlay(t, line)
			if s.sealed < 1000 || s.vxlan[redVNI] != 0 || s.roce != 0 {
				t.Errorf("the underlay has seen %+v, want nothing of network %d in the clear", s, redVNI)
			}
			if s.vxlan[blueVNI] < 20 {
				t.Errorf("the underlay has seen %+v, want network %d, too: the capture shows nothing", s, blueVNI)
			}
			// ibv_rc_pingpong sends this byte over and over.
			data, err := os.ReadFile(inside)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(data, bytes.Repeat([]byte{0x7b}, 512)) {
				t.Error("vrdma pcap does not show the inside of the tunnel")
			}
		})
	}
}

// TestEncryptedRestart: a daemon of an encrypted network is killed under traffic and restarted with its store and its
// key. The other daemon reaches it again, with a new session.
func TestEncryptedRestart(t *testing.T) {
	harness.Need(t, "rping")
	w, nics := sealedLab(t, layout{mtu: 1500}, func(h *host) string { return h.ip4 })
	a, b := nics["red"][0], nics["red"][1]
	rping(t, a, b)
	talk := workload.Perf("write_bw", "-D 180 -f 0 -s 65536").Start(t, a.side(), b.side())
	frames := w.b.frames(t)
	if !harness.Poll(minute, func() bool { return w.b.frames(t) > frames+5000 || talk.Client.Ended(0) }) || talk.Client.Ended(0) {
		t.Fatalf("no traffic\n%s", talk)
	}
	w.b.Process.Signal(syscall.SIGKILL)
	if !w.b.Process.Ended(minute) {
		t.Fatal("the daemon does not die")
	}
	w.b.start(t, w.b.args...)
	talk.Client.End()
	talk.Server.End()
	rping(t, a, b)
	rping(t, b, a)
}
