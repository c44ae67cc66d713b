package main

import (
	"crypto/rand"
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
	"vrdma.dev/vrdma/internal/platform/tcpcount"
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
	count, countPath, err := tcpcount.New()
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
	fmt.Fprintln(os.Stderr, "vrdma:", socketsSummary(place, label, tcpcount.Read(count)))
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

// settleTime bounds how long the daemon takes to notice the end of a program.
const settleTime = 100 * time.Millisecond

// socketsSummary asks the daemon how many connections went over RDMA, and adds those over TCP.
func socketsSummary(place launch.Place, label string, tcp tcpcount.Count) string {
	time.Sleep(settleTime)
	n, err := protocol.CountConnections(place.Socket, label)
	return tcp.Summary(n, err == nil)
}
