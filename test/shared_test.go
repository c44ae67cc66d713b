package test

import (
	"slices"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// TestSharedMemory: memory that a program shares with others is mapped by the daemon, not
// replaced: POSIX and System V shared memory, memfds, files of tmpfs, shared anonymous memory.
// Its owner can punch holes, make it shorter and seal it.
func TestSharedMemory(t *testing.T) {
	t.Run("root", func(t *testing.T) {
		d := harness.Device(t)
		runCases(t, d, "shared")
		t.Run("status", func(t *testing.T) {
			if got, want := heldKinds(t, d), (protocol.MemoryUsage{Shared: 5 << 20}); got.Shared != want.Shared || got.Foreign != 0 {
				t.Errorf("registered memory is %+v, want %+v", got, want)
			}
		})
	})
	t.Run("user", func(t *testing.T) {
		d := harness.Start(t, harness.Options{User: harness.Nobody()})
		d.NoLeaks(t)
		runCases(t, d, "shared")
		t.Run("status", func(t *testing.T) {
			// Only root may open the file behind shared anonymous memory.
			got, want := heldKinds(t, d), protocol.MemoryUsage{Shared: 4 << 20, Foreign: 1 << 20, Why: []string{protocol.WhyFile.String()}}
			if got.Shared != want.Shared || got.Foreign != want.Foreign || !slices.Equal(got.Why, want.Why) {
				t.Errorf("registered memory is %+v, want %+v", got, want)
			}
		})
	})
}

// heldKinds says how the daemon reaches a mebibyte of each kind.
func heldKinds(t *testing.T, d *harness.Daemon) (u protocol.MemoryUsage) {
	t.Helper()
	p := d.Launch(t, harness.Compile(t, "shared"), ".hold")
	p.Printed(t, "registered", minute)
	for _, s := range d.Status(t).Sessions {
		if len(s.Regions) != 5 {
			t.Errorf("session %d has %d regions, want 5", s.ID, len(s.Regions))
		}
		u = s.Memory
	}
	p.Signal(syscall.SIGKILL)
	<-p.Done()
	return u
}
