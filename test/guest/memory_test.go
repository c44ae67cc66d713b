package guest

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// memory: kinds of shared memory that this machine may lack, or has only after a change of a sysctl: huge pages. It
// also registers memory on the guest's kernel, which has no UFFDIO_MOVE. It runs after taken, which installs vrdma.
func (l *lab) memory(t *testing.T) {
	const socket = "/tmp/memory.sock"
	l.guest.Run(t, limit, "sh", "-c", "echo 8 >/proc/sys/vm/nr_hugepages && mkdir -p /huge && mount -t hugetlbfs none /huge")
	// The programs have been killed when this runs, and the kernel may still be releasing their memory.
	defer l.guest.Run(t, limit, "sh", "-c", "i=0; until umount /huge; do i=$((i+1)); [ $i -lt 300 ] || exit 1; sleep 0.1; done; echo 0 >/proc/sys/vm/nr_hugepages")
	program := harness.Compile(t, "shared")
	l.guest.Install(t, program)
	for _, name := range []string{"libdl.so.2", "libpthread.so.0"} { // of libvrdma.so; the guest's own programs need none
		files, err := filepath.Glob("/lib/*-linux-gnu/" + name)
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s on this machine: %v", name, err)
		}
		for _, file := range files {
			l.guest.Install(t, file)
		}
	}
	daemon := l.guest.Launch(t, harness.Binary(), "daemon", "--socket", socket, "--network=false", "--store", "none", "--usage", "none")
	defer daemon.End()
	status := func() (s protocol.Status, err error) {
		p := l.guest.Launch(t, harness.Binary(), "--socket", socket, "status", "-o", "json")
		p.Ended(limit)
		return s, json.Unmarshal([]byte(p.Output()), &s)
	}
	await(t, "a daemon in the guest", func() bool { _, err := status(); return err == nil })
	run := []string{harness.Binary(), "run", "--socket", socket, "-q", "--", program}
	for _, name := range []string{"posix", "sysv", "anonymous", "punched", ".huge"} {
		t.Run(strings.Trim(name, "."), func(t *testing.T) { l.guest.Run(t, limit, append(run, name)...) })
	}
	if t.Failed() {
		return
	}
	held := l.guest.Launch(t, append(run, ".hold_huge")...)
	defer held.End()
	await(t, "a registration", func() bool { return strings.Contains(held.Output(), "registered") })
	s, err := status()
	if err != nil || len(s.Sessions) != 1 || s.Sessions[0].Memory.Shared != 1<<20 || s.Sessions[0].Memory.Foreign != 0 {
		t.Errorf("the status of a program with a huge page: %+v (%v), want 1 MiB of shared memory", s.Sessions, err)
	}
}

// await waits until so is true.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !so(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}
