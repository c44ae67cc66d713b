package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/pcap"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// fields are the fields that tshark prints, in the order of a dissection.
var fields = []string{
	"frame.protocols", "udp.srcport", "udp.dstport", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn",
	"infiniband.bth.p_key", "infiniband.invariant.crc", "infiniband.aeth.syndrome", "infiniband.mad.mgmtclass",
	"infiniband.mad.attributeid", "ip.checksum.status", "_ws.malformed",
}

// cmClass is the connection manager's.
const cmClass = "0x07"

// dissection is tshark's reading of one packet.
type dissection struct {
	protocols                       string
	src, dst, op, qp, psn, key, crc uint64
	syndrome, class, attribute      string
	sum, malformed                  string
}

// dissect runs tshark on a capture.
func dissect(t *testing.T, file string) (all []dissection) {
	t.Helper()
	args := []string{"-r", file, "-n", "-o", "ip.check_checksum:TRUE", "-T", "fields", "-E", "separator=;"}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	tshark := exec.Command("tshark", args...)
	var complaint bytes.Buffer
	tshark.Stderr = &complaint
	out, err := tshark.Output()
	if err != nil {
		t.Fatalf("tshark: %v\n%s", err, complaint.String())
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ";")
		if len(f) != len(fields) {
			t.Fatalf("tshark printed %q, want %d fields", line, len(fields))
		}
		d := dissection{protocols: f[0], syndrome: f[8], class: f[9], attribute: f[10], sum: f[11], malformed: f[12]}
		for i, p := range []*uint64{&d.src, &d.dst, &d.op, &d.qp, &d.psn, &d.key, &d.crc} {
			if p == &d.crc && f[i+1] == "" && d.class != cmClass {
				continue // it stops at an unknown management class
			}
			if *p, err = strconv.ParseUint(f[i+1], 0, 64); err != nil {
				t.Fatalf("tshark says %s of packet %d: %q, want a number\n%s", fields[i+1], len(all)+1, f[i+1], line)
			}
		}
		all = append(all, d)
	}
	return all
}

// startCapture starts `vrdma pcap` beside the host's daemon. When it returns, no packet is missed.
func (h *host) startCapture(t *testing.T, file string) *harness.Process {
	t.Helper()
	p := harness.Spawn(t, h.Command("pcap", "-w", file))
	there := func() bool { _, err := os.Stat(file); return err == nil || p.Ended(0) }
	if !harness.Poll(minute, there) || p.Ended(0) {
		t.Fatalf("no capture: %s\n%s", p.Fate(), p.Output())
	}
	return p
}

// TestPcap: what `vrdma pcap` writes of local and remote traffic equals the traffic on the wire, and tshark decodes it.
func TestPcap(t *testing.T) {
	harness.Need(t, "tshark", "rping")
	w := newLab(t, layout{mtu: 1500, cable: true})
	dir := t.TempDir()
	file, line := filepath.Join(dir, "a.pcap"), filepath.Join(dir, "line.pcap")
	stop := w.cable.Capture(t, line)
	capture := w.a.startCapture(t, file)
	here4, here6 := w.a.side(false), w.a.side(true)
	// tshark 4.0 misreads the shortest sends, so all have 64 bytes or more.
	workload.Pingpong("rc", 4096, 5, "").Run(t, here4, here4, minute)
	workload.Pingpong("uc", 4096, 5, "").Run(t, here6, here6, minute)
	workload.Pingpong("rc", 4096, 5, "").Run(t, here4, w.b.side(false), minute)
	workload.Pingpong("ud", 512, 5, "").Run(t, here6, w.b.side(true), minute)
	workload.Perf("write_bw", "-n 5 -s 65536").Run(t, here4, w.b.side(false), minute)
	workload.Perf("read_bw", "-n 5 -s 8192").Run(t, here6, w.b.side(true), minute)
	workload.Perf("atomic_lat", "-n 5").Run(t, here4, w.b.side(false), minute)
	ping := workload.ManagedTools(3)[0]
	ping.Run(t, here4, w.b.side(false), minute)
	ping.Run(t, here4, here4, minute)
	w.quiet(t)
	capture.Signal(syscall.SIGINT)
	capture.OK(t, minute)
	stop()

	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := pcap.NewReader(bytes.NewReader(data)); err != nil || r.LinkType() != pcap.RawIP {
		t.Fatalf("not a capture of raw IP: %v", err)
	}
	packets := golden.Decode(t, data)
	w.compare(t, packets, golden.Read(t, line))
	checkDissection(t, packets, dissect(t, file))
	if says := fmt.Sprintf("captured %d packets, 0 were left out", len(packets)); !strings.Contains(capture.Output(), says) {
		t.Errorf("vrdma pcap does not say %q:\n%s", says, capture.Output())
	}
}

// TestPcapSelects: a capture of one peer, of so many packets and of their first bytes, in pcapng, as Wireshark's tools read it. What
// a reader that is too slow misses is said, and is in the file's statistics.
func TestPcapSelects(t *testing.T) {
	harness.Need(t, "tshark", "capinfos")
	w := newLab(t, layout{mtu: 1500})
	file := filepath.Join(t.TempDir(), "a.pcapng")
	capture := harness.Spawn(t, w.a.Command("pcap", "-w", file, "--nic", "default", "--peer", w.b.ip4, "-c", "10", "-s", "64"))
	there := func() bool { _, err := os.Stat(file); return err == nil || capture.Ended(0) }
	if !harness.Poll(minute, there) || capture.Ended(0) {
		t.Fatalf("no capture: %s\n%s", capture.Fate(), capture.Output())
	}
	workload.Pingpong("rc", 4096, 5, "").Run(t, w.a.side(false), w.a.side(false), minute) // another peer
	workload.Pingpong("rc", 4096, 20, "").Run(t, w.a.side(false), w.b.side(false), minute)
	if out := capture.OK(t, minute); !strings.Contains(out, "captured 10 packets, 0 were left out") {
		t.Errorf("vrdma pcap says:\n%s", out)
	}
	read := func(tool string, args ...string) string {
		t.Helper()
		p := harness.Spawn(t, exec.Command(tool, append(args, file)...))
		p.OK(t, minute)
		return p.Stdout()
	}
	if out := read("capinfos"); !strings.Contains(out, "pcapng") || !strings.Contains(out, "Number of packets:   10") || !strings.Contains(out, "Number of packets dropped = 0") && !strings.Contains(out, "Number of stat entries = 1") {
		t.Errorf("capinfos says:\n%s", out)
	}
	for line := range strings.Lines(read("tshark", "-n", "-T", "fields", "-e", "ip.addr", "-e", "frame.cap_len", "-r")) {
		if f := strings.Fields(line); len(f) != 2 || !strings.Contains(f[0], w.b.ip4) || f[1] > "64" {
			t.Errorf("a packet that nobody asked for: %q", line)
		}
	}
	// A reader that stands still.
	file = filepath.Join(t.TempDir(), "slow.pcapng")
	slow := harness.Spawn(t, w.a.Command("pcap", "-w", file))
	if !harness.Poll(minute, func() bool { _, err := os.Stat(file); return err == nil || slow.Ended(0) }) || slow.Ended(0) {
		t.Fatalf("no capture: %s\n%s", slow.Fate(), slow.Output())
	}
	slow.Signal(syscall.SIGSTOP)
	workload.Perf("write_bw", "-n 200 -s 1048576").Run(t, w.a.side(false), w.a.side(false), minute)
	slow.Signal(syscall.SIGCONT)
	slow.Signal(syscall.SIGINT)
	out := slow.OK(t, minute)
	if strings.Contains(out, " 0 were left out") || !strings.Contains(out, "were left out because the reader was too slow") {
		t.Errorf("vrdma pcap says:\n%s", out)
	}
	if left, stats := regexp.MustCompile(`(\d+) were left out`).FindStringSubmatch(out), statistics(t, file); len(left) != 2 || !strings.Contains(stats, left[1]) {
		t.Errorf("the file's statistics are %s, want %v", stats, left)
	}
}

// statistics are the last block of a pcapng file, as text: how many packets there were, and how many are not in the file.
func statistics(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil || len(data) < 60 {
		t.Fatalf("%s: %v, %d bytes", file, err, len(data))
	}
	block := data[len(data)-int(binary.LittleEndian.Uint32(data[len(data)-4:])):]
	if binary.LittleEndian.Uint32(block) != 5 {
		t.Fatalf("the last block is % x, want statistics", block)
	}
	return fmt.Sprintf("received %d, dropped %d", binary.LittleEndian.Uint64(block[24:]), binary.LittleEndian.Uint64(block[36:]))
}

// quiet waits until the cable has carried nothing for a while.
func (w *lab) quiet(t *testing.T) {
	t.Helper()
	const still = time.Second // a host that wants to send may wait for a processor
	last, since := w.cable.Count().Carried, time.Now()
	ok := harness.Poll(minute, func() bool {
		if n := w.cable.Count().Carried; n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > still
	})
	if !ok {
		t.Fatal("the hosts do not stop talking")
	}
}

// compare compares a host's capture with the traffic of its line: the same packets.
func (w *lab) compare(t *testing.T, captured, line []golden.Packet) {
	t.Helper()
	own := func(a netip.Addr) bool { return a.String() == w.a.ip4 || a.String() == w.a.ip6 }
	count := map[string]int{}
	local := 0
	key := func(p *golden.Packet) string { return fmt.Sprint(p.Src, p.Dst, p.ID, p.Data) }
	for i := range captured {
		if p := &captured[i]; own(p.Src.Addr()) && own(p.Dst.Addr()) {
			local++
		} else {
			count[key(p)]++
		}
	}
	for i := range line {
		count[key(&line[i])]--
	}
	more, fewer := 0, 0
	for _, n := range count {
		more += max(n, 0)
		fewer += max(-n, 0)
	}
	if more+fewer != 0 || local == 0 || len(line) == 0 {
		t.Errorf("of %d packets on the line %d were not captured, and %d others were; %d were local", len(line), fewer, more, local)
	}
}

// checkDissection compares tshark's reading of a capture with ours, packet by packet, and requires everything that the
// tools above must have sent.
func checkDissection(t *testing.T, packets []golden.Packet, all []dissection) {
	t.Helper()
	if len(all) != len(packets) || len(all) < 100 {
		t.Fatalf("tshark sees %d packets, and there are %d RoCEv2 packets", len(all), len(packets))
	}
	seen := map[string]bool{}
	ports := map[string]uint64{}
	for i, d := range all {
		p, err := wire.Parse(packets[i].Data)
		if err != nil {
			t.Fatalf("packet %d: %v", i+1, err)
		}
		ip := "ip"
		if packets[i].Src.Addr().Is6() {
			ip = "ipv6"
		}
		if want := "raw:" + ip + ":udp:infiniband"; !strings.HasPrefix(d.protocols, want) || d.malformed != "" {
			t.Errorf("packet %d, %v: tshark sees %s (%q), want %s", i+1, p, d.protocols, d.malformed, want)
		}
		if ip == "ip" && d.sum != "1" {
			t.Errorf("packet %d, %v: tshark finds its IP checksum wrong", i+1, p)
		}
		b := p.BTH() // tshark shows the ICRC's bytes as they come, the lowest first
		got := []uint64{d.src, d.dst, d.op, d.qp, d.psn, d.key, d.crc}
		want := []uint64{uint64(packets[i].Src.Port()), wire.Port, uint64(b.Opcode()), uint64(b.DestQP()), uint64(b.PSN()), uint64(b.PKey()), uint64(bits.ReverseBytes32(p.ICRC()))}
		if d.class != "" && d.class != cmClass {
			want[6] = d.crc
		}
		if !slices.Equal(got, want) {
			t.Errorf("packet %d, %v: tshark reads ports, opcode, QP, PSN, P_Key, ICRC %#x, want %#x", i+1, p, got, want)
		}
		var flow wire.Flow
		flow.Set(packets[i].Src, packets[i].Dst)
		if flow.Sum(p, packets[i].ID) != p.ICRC() {
			t.Errorf("packet %d, %v: its ICRC is not that of its headers", i+1, p)
		}
		seen[ip+" "+p.Format().Name] = true
		// A packet names the queue pair that it is for; the peer's has one port.
		pair := fmt.Sprint(packets[i].Src.Addr(), packets[i].Dst.Addr(), b.DestQP())
		if h := p.DETH(); h != nil {
			pair += fmt.Sprint(" from ", h.SrcQP())
		}
		if port, again := ports[pair]; again && port != d.src || d.src < 0xc000 {
			t.Errorf("packet %d, %v: from port %d, and before from %d; want one of 0xc000 to 0xffff", i+1, p, d.src, port)
		}
		ports[pair] = d.src
		if d.class != "" {
			seen["MAD "+d.class+" "+d.attribute] = true
		}
	}
	for _, want := range []string{
		"ip RC Send First", "ip RC Send Last", "ip RC Acknowledge", "ipv6 UC Send First", "ipv6 UD Send Only",
		"ip RC RDMA Write First", "ip RC RDMA Write Middle", "ip RC RDMA Write Last", "ipv6 RC RDMA Read Request", "ipv6 RC RDMA Read Response First",
		"ip RC Fetch Add", "ip RC Atomic Acknowledge",
		// The connection manager: REQ, REP, RTU, DREQ, DREP.
		"MAD " + cmClass + " 0x0010", "MAD " + cmClass + " 0x0013", "MAD " + cmClass + " 0x0014", "MAD " + cmClass + " 0x0015", "MAD " + cmClass + " 0x0016",
	} {
		if !seen[want] {
			t.Errorf("no %s in %v", want, seen)
		}
	}
}

// TestPcapPipe: a capture through a pipe, as in the manual, ends with its reader and does not block the next one.
func TestPcapPipe(t *testing.T) {
	harness.Need(t, "tshark")
	w := newLab(t, layout{mtu: 1500})
	for range 2 {
		pipe := w.a.Command()
		pipe.Path, pipe.Args = "/bin/sh", []string{"sh", "-c", harness.Binary() + " pcap | tshark -l -r - -c 20 -T fields -e infiniband.bth.opcode"}
		p := harness.Spawn(t, pipe)
		// Traffic continues until the reader ends; a capture that has not started misses some.
		enough := harness.Poll(2*minute, func() bool {
			workload.Pingpong("rc", 4096, 5, "").Run(t, w.a.side(false), w.b.side(false), minute)
			return p.Ended(0)
		})
		if !enough {
			t.Fatalf("tshark has not seen 20 packets in two minutes\n%s", p.Output())
		}
		if n := len(strings.Fields(p.Stdout())); n != 20 {
			t.Errorf("tshark printed %d opcodes, want 20:\n%s", n, p.Output())
		}
	}
	// One capture at a time: the second gets an error.
	first := w.a.startCapture(t, filepath.Join(t.TempDir(), "first.pcap"))
	second := harness.Spawn(t, w.a.Command("pcap", "-w", filepath.Join(t.TempDir(), "second.pcap")))
	if code := second.Wait(t, minute); code != 1 || !strings.Contains(second.Output(), "another capture is running") {
		t.Errorf("a second capture ended with %d, want 1 and an explanation:\n%s", code, second.Output())
	}
	first.Signal(syscall.SIGTERM)
	first.OK(t, minute)
}
