package test

import (
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// TestSharedMemory: the daemon maps memory that a program shares with others, and does not replace it: POSIX and System
// V shared memory, memfds, files of tmpfs, shared anonymous memory. Its owner can punch holes, shorten it and seal it.
func TestSharedMemory(t *testing.T) {
	of := func(start func(testing.TB) *harness.Daemon) func(*testing.T) {
		return func(t *testing.T) {
			d := start(t)
			runCases(t, d, "shared")
			t.Run("status", func(t *testing.T) { wantShared(t, d, "shared", ".hold", 5, 5<<20) })
		}
	}
	t.Run("root", of(harness.Device))
	t.Run("user", of(userDevice))
}

// TestSharedAnonymous: under an ordinary user's daemon the library maps a memfd instead of shared anonymous memory. The
// program sees no difference.
func TestSharedAnonymous(t *testing.T) {
	d := userDevice(t)
	runCases(t, d, "anonymous")
	t.Run("status", func(t *testing.T) { wantShared(t, d, "anonymous", ".hold", 1, 4<<20) })
	t.Run("inherited", func(t *testing.T) { wantShared(t, d, "anonymous", ".hold_inherited", 1, 4<<20) })
}

// userDevice is a device of an ordinary user, with programs of that user.
func userDevice(t testing.TB) *harness.Daemon {
	t.Helper()
	d := harness.Start(t, harness.Options{User: harness.Nobody()})
	d.NoLeaks(t)
	return d
}

// wantShared launches a case that registers memory and stays. The daemon maps all of the memory.
func wantShared(t *testing.T, d *harness.Daemon, program, name string, regions int, bytes uint64) {
	t.Helper()
	p := d.Launch(t, harness.Compile(t, program), name)
	p.Printed(t, "registered", minute)
	var got protocol.MemoryUsage
	for _, s := range d.Status(t).Sessions {
		if len(s.Regions) != regions {
			t.Errorf("session %d has %d regions, want %d", s.ID, len(s.Regions), regions)
		}
		got = s.Memory
	}
	if got.Shared != bytes || got.Foreign != 0 {
		t.Errorf("registered memory is %+v, want %d bytes, all shared", got, bytes)
	}
	p.Signal(syscall.SIGKILL)
	<-p.Done()
}
