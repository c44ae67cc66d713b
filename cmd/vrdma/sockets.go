package main

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/launch"
)

// rsocketsPlaces are the paths of rsockets' preload library in distributions.
var rsocketsPlaces = []string{
	"/usr/lib/*/rsocket/librspreload.so", "/usr/lib64/rsocket/librspreload.so", "/usr/lib/rsocket/librspreload.so",
	"/usr/local/lib*/rsocket/librspreload.so", "/usr/local/lib/*/rsocket/librspreload.so",
}

// rsocketsPackage is the remedy if it is missing.
const rsocketsPackage = "install librdmacm1 (librdmacm1t64 in newer Debian and Ubuntu, librdmacm in Fedora)"

// findRsockets finds the library; VRDMA_RSPRELOAD names another one.
func findRsockets() (string, error) {
	if path := os.Getenv("VRDMA_RSPRELOAD"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", lacks("VRDMA_RSPRELOAD: %w; %s", err, rsocketsPackage)
		}
		return path, nil
	}
	for _, pattern := range rsocketsPlaces {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // only a bad pattern fails
			return found[0], nil
		}
	}
	return "", lacks("--sockets needs librspreload.so, rdma-core's preload library for rsockets: %s, or name it with VRDMA_RSPRELOAD", rsocketsPackage)
}

// runSockets runs a program with its TCP connections over RDMA, and prints at its end how many
// used RDMA.
func runSockets(place launch.Place, reach func(launch.Place) (*os.File, error), path string, args []string) error {
	library, err := findRsockets()
	if err != nil {
		return err
	}
	lease, err := reach(place)
	if err != nil {
		return err
	}
	if lease != nil {
		defer lease.Close()
	}
	count, countPath, err := newTCPCount()
	if err != nil {
		return lacks("no memory in which to count connections: %w", err)
	}
	defer count.Close()
	label := rand.Text()
	raiseFiles()
	env := append(preloadFirst(os.Environ(), place.Sockets()+":"+library), "VRDMA_COUNT="+countPath)
	if os.Getenv("VRDMA_YIELD") == "" {
		env = append(env, socketsYield)
	}
	env = place.Environment(env, label)
	program := &exec.Cmd{
		Path: path, Args: place.InSandbox(args, env), Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	status, err := supervise(program, nil, nil)
	if err != nil {
		return &exit.Error{Status: 126, Err: fmt.Errorf("cannot execute %s: %w", path, err)}
	}
	fmt.Fprintln(os.Stderr, "vrdma:", socketsSummary(place, label, readTCPCount(count)))
	if status != 0 {
		return &exit.Error{Status: status}
	}
	return nil
}

// raiseFiles raises the program's soft limit of open files to the hard limit: a connection over RDMA
// needs about six.
func raiseFiles() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur >= limit.Max {
		return
	}
	limit.Cur = min(limit.Max, 65536)
	unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) // a lower one works too
}

// socketsYield is VRDMA_YIELD for programs that wait in rsockets' poll: one round of it takes longer
// than a poll of a completion queue.
const socketsYield = "VRDMA_YIELD=4"

// preloadFirst returns env with a library first in LD_PRELOAD.
func preloadFirst(env []string, library string) []string {
	var out []string
	list := library
	for _, entry := range env {
		if rest, ok := strings.CutPrefix(entry, "LD_PRELOAD="); ok {
			list += ":" + rest
			continue
		}
		out = append(out, entry)
	}
	return append(out, "LD_PRELOAD="+list)
}

// tcpCount mirrors struct counts of shim/sockets/sockets.h: connections that did not use RDMA, by reason.
type tcpCount struct {
	Refused   uint64 // connected by TCP: nobody listened on RDMA there
	Silent    uint64 // connected by TCP: RDMA did not reach the peer
	Accepted  uint64 // accepted by TCP: the peer did not come over RDMA
	Unmade    uint64 // sockets that rsockets did not make: no device, or in a fork child
	UDP       uint64 // UDP sockets
	Forked    uint64 // processes that wanted to use a connection that they inherited by fork
	Inherited uint64 // accepted by TCP, from a listener that was inherited by fork
}

var tcpCountSize = int64(binary.Size(tcpCount{}))

// newTCPCount creates the memory in which the program and its children count. They find it by its
// path in /proc, because some programs close inherited descriptors. It has no other name, so nothing
// is left when this process ends.
func newTCPCount() (f *os.File, path string, err error) {
	fd, err := unix.MemfdCreate("vrdma-count", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, "", fmt.Errorf("memfd_create: %w", err)
	}
	f = os.NewFile(uintptr(fd), "vrdma-count")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := f.Truncate(tcpCountSize); err != nil {
		return nil, "", err
	}
	// The library recognises the memory by these values.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, "", fmt.Errorf("sealing it: %w", err)
	}
	// The process number in /proc, which may belong to an outer namespace.
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return nil, "", err
	}
	return f, fmt.Sprintf("/proc/%s/fd/%d", self, fd), nil
}

func readTCPCount(f *os.File) (c tcpCount) {
	b := make([]byte, tcpCountSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		return c
	}
	binary.Decode(b, binary.NativeEndian, &c) // of the right size
	return c
}

// settleTime bounds how long the daemon takes to notice the end of a program.
const settleTime = 100 * time.Millisecond

// socketsSummary reports the number of connections over RDMA and TCP, with reasons.
func socketsSummary(place launch.Place, label string, tcp tcpCount) string {
	time.Sleep(settleTime)
	text := "an unknown number of connections went over RDMA"
	if n, err := protocol.CountConnections(place.Socket, label); err == nil {
		text = count(n, "connection") + " went over RDMA"
	}
	if past := tcp.Refused + tcp.Silent + tcp.Accepted + tcp.Inherited; past > 0 {
		text += fmt.Sprintf(", %d over TCP", past)
	} else {
		text += ", none over TCP"
	}
	if why := tcp.reasons(); len(why) > 0 {
		text += " (" + strings.Join(why, "; ") + ")"
	}
	return text
}

// count formats a number of things.
func count(n uint64, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		return fmt.Sprintf("%d %ses", n, thing)
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// reasons lists why connections did not use RDMA.
func (c tcpCount) reasons() []string {
	var why []string
	for _, r := range []struct {
		n           uint64
		thing, text string
	}{
		{c.Refused, "connection", "to a peer that does not listen on RDMA: run it with vrdma run --sockets too"},
		{c.Silent, "connection", "to a peer that RDMA does not reach"},
		{c.Accepted, "connection", "from a peer without RDMA: run it with vrdma run --sockets too"},
		{c.Unmade, "socket", "that librspreload.so did not make: it found no RDMA device, or a fork came before"},
		{c.UDP, "UDP socket", "left to the kernel"},
		{c.Forked, "process", "made by fork that wanted to use an RDMA connection of the parent, which is not possible"},
		{c.Inherited, "connection", "to a server that hands its connections to child processes: RDMA connections do not survive fork"},
	} {
		if r.n > 0 {
			why = append(why, count(r.n, r.thing)+" "+r.text)
		}
	}
	return why
}
