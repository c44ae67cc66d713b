package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Pair is what two machines have, and what is between them.
type Pair struct {
	Here    []Finding `json:"here"`
	There   []Finding `json:"there"`
	Between []Finding `json:"between"`
}

const groupBetween = "between the two"

// portCheck is the name of the check of rocePort.
const portCheck = "port 4791"

// How long the peer may take to greet, which includes its checks and the trial boot, and to answer one datagram.
const (
	greetTimeout  = 2 * time.Minute
	answerTimeout = 500 * time.Millisecond
	answerTries   = 5
)

// ExaminePeer examines this machine and another one. The program is copied there, examines the machine, answers packets, and is
// removed. rsh is a remote shell with its arguments.
func ExaminePeer(ctx context.Context, m *Machine, rsh []string, peer, program string) (p Pair, err error) {
	at := func(command string) *exec.Cmd {
		c := exec.CommandContext(ctx, rsh[0], append(slices.Clone(rsh[1:]), peer, command)...)
		c.WaitDelay = time.Second
		return c
	}
	f, err := os.Open(program)
	if err != nil {
		return p, err
	}
	defer f.Close()
	var said bytes.Buffer
	upload := at("umask 077 && d=$(mktemp -d /tmp/vrdma-doctor.XXXXXXXX) && cat >$d/vrdma && chmod 700 $d/vrdma && echo $d")
	upload.Stdin, upload.Stderr = f, &said
	out, err := upload.Output()
	dir := strings.TrimSpace(string(out))
	dir = dir[strings.LastIndexByte(dir, '\n')+1:] // some shells greet
	if err != nil || !strings.HasPrefix(dir, "/tmp/vrdma-doctor.") {
		return p, fmt.Errorf("%s cannot be reached with %s: %w\n%s", peer, rsh[0], errors.Join(err, fmt.Errorf("mktemp printed %q", dir)), strings.TrimSpace(said.String()))
	}
	said.Reset()
	answerer := at(fmt.Sprintf("%s/vrdma doctor --answer; rm -rf %[1]s", dir))
	answerer.Stderr = &said
	in, err1 := answerer.StdinPipe()
	from, err2 := answerer.StdoutPipe()
	if err := errors.Join(err1, err2, answerer.Start()); err != nil {
		return p, err
	}
	end := sync.OnceFunc(func() {
		in.Close() // the answerer ends, and its directory is removed
		late := time.AfterFunc(greetTimeout, func() { answerer.Process.Kill() })
		defer late.Stop()
		answerer.Wait() // what it said is complete then; its exit status does not matter
	})
	defer end()
	p.Here = Examine(m, All(), "")
	g, err := greet(from, func() { answerer.Process.Kill() })
	if err != nil {
		end()
		return p, fmt.Errorf("vrdma does not run on %s, which needs to be %s/%s: %w\n%s", peer, runtime.GOOS, runtime.GOARCH, err, strings.TrimSpace(said.String()))
	}
	p.There = g.Findings
	host := peer[strings.LastIndexByte(peer, '@')+1:]
	p.Between = slices.Concat(reach(ctx, host, &g), compare(p.Here, p.There))
	return p, nil
}

// greet reads the greeting. If there is none in time, it calls give up.
func greet(from io.Reader, giveUp func()) (g greeting, err error) {
	late := time.AfterFunc(greetTimeout, giveUp)
	defer late.Stop()
	line, err := bufio.NewReader(from).ReadBytes('\n')
	if err != nil {
		return g, err
	}
	return g, json.Unmarshal(line, &g)
}

// reach sends packets to an Answerer.
func reach(ctx context.Context, host string, g *greeting) []Finding {
	finding := func(name string, outcome Outcome, found, do string, needed bool) Finding {
		f := Finding{Group: groupBetween, Name: name, Outcome: outcome, Found: found, For: Experiments, Needed: needed}
		if outcome != Yes {
			f.Do = do
		}
		return f
	}
	var list []Finding
	add := func(name string, outcome Outcome, found, do string, needed bool) {
		list = append(list, finding(name, outcome, found, do, needed))
	}

	d := net.Dialer{Timeout: 10 * answerTimeout}
	c, err := d.DialContext(ctx, "tcp4", net.JoinHostPort(host, fmt.Sprint(g.TCP)))
	if err == nil {
		add("TCP", Yes, fmt.Sprintf("port %d answers", g.TCP), "", true)
		c.Close()
	} else {
		add("TCP", No, err.Error(), fmt.Sprintf("let TCP to the ports %d to %d through the firewalls, for measuring tools", firstToolPort, firstToolPort+toolPorts-1), true)
	}

	d.Control = unfragmented
	u, err := d.DialContext(ctx, "udp4", net.JoinHostPort(host, fmt.Sprint(g.UDP)))
	if err != nil {
		add("address", No, err.Error(), "name the machine by an address of the network that carries RDMA", true)
		return list
	}
	defer u.Close()
	add("address", Yes, fmt.Sprintf("%s to %s", hostOf(u.LocalAddr()), hostOf(u.RemoteAddr())), "", true)
	const open = "let UDP port 4791 through the firewalls of both machines, in both directions"
	took, err := roundTrip(u, g.Token, 0)
	switch {
	case err != nil:
		add("UDP", No, fmt.Sprintf("port %d does not answer: %v", g.UDP, err), open, true)
		return list
	case g.Busy != "":
		add("UDP", Unknown, fmt.Sprintf("port %d answers; port %d there is in use (%s)", g.UDP, rocePort, g.Busy), "stop the daemon there and try again, to know that firewalls let port 4791 through", true)
	default:
		add("UDP", Yes, fmt.Sprintf("port %d answers in %v", g.UDP, took.Round(time.Microsecond)), "", true)
	}
	most := 0
	for _, size := range packetSizes {
		if _, err := roundTrip(u, g.Token, size-ipUDPHeaders); err != nil {
			break
		}
		most = size
	}
	outcome := Yes
	if most < packetSizes[len(packetSizes)-1] {
		outcome = No
	}
	add("packets", outcome, fmt.Sprintf("of %d bytes pass unfragmented", most), "ip link set dev INTERFACE mtu 9000 on both machines, and jumbo frames on the switch: small packets cost processor time", false)
	return list
}

// packetSizes are the IP packets that are tried: the common MTU, what a path MTU of 4096 needs, and jumbo frames.
var packetSizes = []int{576, 1500, 4200, 9000}

const ipUDPHeaders = 28

// roundTrip sends a datagram of n bytes, at least the token, and waits for its return.
func roundTrip(u net.Conn, token string, n int) (took time.Duration, err error) {
	b := make([]byte, max(n, len(token)+1))
	back := make([]byte, 1<<16)
	copy(b, token)
	for try := range answerTries {
		b[len(token)] = byte(try)
		begin := time.Now()
		if _, err = u.Write(b); err != nil {
			return 0, err // too long for the interface, or refused
		}
		u.SetReadDeadline(begin.Add(answerTimeout))
		for {
			var got int
			if got, err = u.Read(back); err != nil {
				break
			}
			if bytes.Equal(back[:got], b) { // else the answer of an earlier try
				return time.Since(begin), nil
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%d packets were lost", answerTries)
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// compare compares what both machines have.
func compare(here, there []Finding) (list []Finding) {
	at := func(list []Finding, name string) Finding {
		if i := slices.IndexFunc(list, func(f Finding) bool { return f.Name == name }); i >= 0 {
			return list[i]
		}
		return Finding{Outcome: Unknown}
	}
	var differ []string
	for _, p := range tools {
		a, b := at(here, p.name), at(there, p.name)
		if a.Outcome == Yes && b.Outcome == Yes && a.Found != b.Found {
			differ = append(differ, fmt.Sprintf("%s %s here and %s there", p.name, a.Found, b.Found))
		}
	}
	versions := Finding{Group: groupBetween, Name: "versions", Outcome: Yes, Found: "of the tools that both have are equal", For: Experiments}
	if len(differ) > 0 {
		versions.Outcome, versions.Found, versions.Do = No, strings.Join(differ, ", "), "install the same versions: perftest of different versions do not understand each other"
	}
	list = append(list, versions)

	a, b := at(here, "devices"), at(there, "devices")
	device := Finding{Group: groupBetween, Name: "kernel devices", Outcome: No, For: cited,
		Found: "a device of the kernel is not on both", Do: "TCP and vrdma are measured without one; to compare with the kernel: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE on both, or a NIC with RDMA"}
	if a.Outcome == Yes && b.Outcome == Yes {
		device.Outcome, device.Found, device.Do = Yes, a.Found+" here, "+b.Found+" there", ""
	}
	return append(list, device)
}
