package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/tunnel"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// sealed: the guest is a member of an encrypted network, with the kernel's WireGuard below its vxlan device, only by
// the commands that vrdma prints. Without a key vrdma refuses it.
func (l *lab) sealed(t *testing.T) {
	l.cable.Keep(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "guest.key")
	key, err := tunnel.LoadKey(file)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// The commands name the file KEYFILE.
	l.guest.Run(t, limit, "sh", "-c", "umask 077; echo "+strings.TrimSpace(string(secret))+" >KEYFILE")
	d := l.daemon(t, "--store", filepath.Join(harness.Directory(t, nil), "store"), "--underlay", ourIP4, "--tunnel-key", filepath.Join(dir, "our.key"))
	declareNetwork(t, d, ", publicKey: "+tunnel.FormatPublic(key.Public()), ", encryption: true")
	stop := l.cable.Capture(t, filepath.Join(dir, "wire.pcap"))
	l.obey(t, memberCommands(t, d))
	defer func() {
		l.leaveNetwork(t)
		l.guest.Run(t, limit, "ip", "link", "delete", "wg-vrdma")
	}()
	p := pair{
		lab:   l,
		ours:  workload.Host{Machine: memberNIC{d, "red/ours"}, IP: ourIP4},
		guest: workload.Host{Machine: l.guest, IP: guestIP4, GID: l.guest.gid(t, guestNetIP4)},
	}
	for _, w := range []workload.Workload{workload.Pingpong("rc", 4096, 30, ""), workload.Pingpong("ud", 512, 30, ""), perf("write_bw", "-n 20 -s 65536"), perf("read_bw", "-n 20 -s 65536")} {
		p.both(t, w)
	}
	ours, guest := p.ours, p.guest
	ours.IP, guest.IP = netIP4, guestNetIP4 // of rdma_cm
	t.Run("rping/guest_client", func(t *testing.T) { p.persist(t, rping, ours, guest) })
	t.Run("rping/our_client", func(t *testing.T) { p.persist(t, rping, guest, ours) })
	p6 := ours
	p6.Machine, p6.IP, guest.IP = memberNIC{d, "red/ours6"}, netIP6, guestNetIP6
	t.Run("rping/ipv6", func(t *testing.T) { p.persist(t, rping, p6, guest) })
	stop()
	out := l.guest.Run(t, limit, "wg", "show", "wg-vrdma")
	t.Logf("$ wg show\n%s", out)
	if !strings.Contains(out, "latest handshake") {
		t.Error("the guest has made no handshake")
	}
	if ports := udpPorts(t, filepath.Join(dir, "wire.pcap")); ports[overlay.DefaultTunnelPort] < 100 || ports[overlay.DefaultPort] != 0 || ports[4791] != 0 {
		t.Errorf("on the wire are datagrams to ports %v: want none to %d or 4791, and many to %d", ports, overlay.DefaultPort, overlay.DefaultTunnelPort)
	}
	if c := d.Status(t).Counters; c["overlay_not_encrypted"]+c["overlay_spoofed"]+c["overlay_bad_head"] != 0 {
		t.Errorf("the overlay counted %v", c)
	}
}

// udpPorts counts the datagrams of a capture by the port that they are sent to.
func udpPorts(t *testing.T, file string) map[uint16]int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcap.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	ports := make(map[uint16]int)
	for {
		_, f, err := r.Next()
		if errors.Is(err, io.EOF) {
			return ports
		}
		if err != nil {
			t.Fatal(err)
		}
		const ipv4, ipv6 = 0x0800, 0x86dd
		switch {
		case len(f) > 14+20+8 && binary.BigEndian.Uint16(f[12:]) == ipv4 && f[23] == 17:
			ports[binary.BigEndian.Uint16(f[14+20+2:])]++
		case len(f) > 14+40+8 && binary.BigEndian.Uint16(f[12:]) == ipv6 && f[20] == 17:
			ports[binary.BigEndian.Uint16(f[14+40+2:])]++
		}
	}
}
