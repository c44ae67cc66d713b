package tenants

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/test/harness"
)

// manyNICs are NICs in networks of tenants, ten networks each. All networks have the same subnet.
func manyNICs(networks, each int) string {
	var b strings.Builder
	object := func(kind, meta, spec string) {
		fmt.Fprintf(&b, "apiVersion: vrdma.io/v1\nkind: %s\nmetadata: {%s}\nspec: {%s}\n---\n", kind, meta, spec)
	}
	for n := range networks {
		t := fmt.Sprintf("t%d", n/10)
		if n%10 == 0 {
			object("Tenant", "name: "+t, "")
		}
		object("Network", fmt.Sprintf("name: n%d, tenant: %s", n%10, t), "subnets: [10.1.0.0/24]")
		for i := range each {
			object("NIC", fmt.Sprintf("name: n%d-%d, tenant: %s", n%10, i, t), fmt.Sprintf("network: n%d, address: 10.1.0.%d", n%10, i+1))
		}
	}
	return b.String()
}

// A thousand unused NICs: one descriptor each, and little memory.
func TestManyNICs(t *testing.T) {
	harness.Need(t, "ibv_rc_pingpong")
	networks, each := 100, 10
	if os.Getenv("VRDMA_TEST_ALL") == "" {
		networks = 20
	}
	count := networks * each
	d := startAt(t, shm(t), "", 0o600, 0o700)
	tcp := harness.FreePort(t) // now, because the reservation is a descriptor
	before := footprint(t, d)
	begin := time.Now()
	d.apply(t, manyNICs(networks, each))
	took := time.Since(begin)
	awaitTrees(t, d, count)
	after := footprint(t, d)
	t.Logf("%d NICs in %d networks: put in %v, trees after %v; each: %s", count, networks, took, time.Since(begin), after.less(before).per(count))
	if fds := after.fds - before.fds; fds > count {
		t.Errorf("%d NICs that nobody uses have %d descriptors, want one each", count, fds)
	}
	if bytes := after.less(before).bytes() / int64(count); bytes > 256<<10 {
		t.Errorf("a NIC that nobody uses takes %d KiB, want 256 at most: %s", bytes>>10, after.less(before).per(count))
	}

	if os.Getenv("VRDMA_TEST_ALL") != "" {
		const while = 3 * time.Second
		busy := processorTime(t)
		time.Sleep(while)
		t.Logf("idle: %.2f %% of a processor", 100*float64(processorTime(t)-busy)/float64(while))
	}

	// One of them works as if it were alone, and leaves nothing open.
	server, client := pingpong(tcp)
	harness.Converse(t, tcp, d.at("t1/n3-0"), server, d.at("t1/n3-1"), client).OK(t, minute)
	if !harness.Poll(minute, func() bool { return footprint(t, d).fds <= after.fds }) {
		t.Errorf("%d descriptors after a program, want %d as before", footprint(t, d).fds, after.fds)
	}
	begin = time.Now()
	if errs := d.provisioner.Remove(d.provisioner.Keys(), false); len(errs) > 0 {
		t.Fatal(errs)
	}
	t.Logf("removed in %v", time.Since(begin))
	if !harness.Poll(minute, func() bool { _, err := os.Stat(d.place.NICs()); return err != nil }) {
		t.Errorf("%s is still there without NICs", d.place.NICs())
	}
	t.Logf("and their files in %v", time.Since(begin))
	if !harness.Poll(minute, func() bool { return footprint(t, d).fds <= before.fds && runtime.NumGoroutine() <= before.goroutines+1 }) {
		now := footprint(t, d)
		t.Errorf("without NICs there are %d descriptors and %d goroutines, want %d and %d", now.fds, now.goroutines, before.fds, before.goroutines)
	}
}

// processorTime is what this process has used.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// shm is a directory on tmpfs, as /run is.
func shm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "vt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// awaitTrees waits until all device trees have their short form.
func awaitTrees(t testing.TB, d *daemon, count int) {
	t.Helper()
	trees := func() int {
		list, _ := filepath.Glob(d.place.NICs() + "/*/*/nic/vrdma.sock.d/sys/class/infiniband/rxe0/device/infiniband_verbs/uverbs0")
		return len(list)
	}
	if !harness.Poll(minute, func() bool { return trees() == count }) {
		t.Fatalf("%d device trees, want %d", trees(), count)
	}
}

// A used is what NICs take of the machine.
type used struct {
	fds, goroutines int
	heap            int64 // bytes of Go's
	stacks          int64
	files           int64 // bytes of the directories' files, as if on tmpfs
	inodes          int64
	names           int64
}

// Kernel memory on tmpfs, apart from pages: an inode, and a name (a dentry). These are not
// measured but assumed: the slab sizes of shmem_inode_cache and dentry on 64-bit Linux are
// somewhat less than 1024, and 192.
const inodeBytes, nameBytes = 1024, 192

func footprint(t testing.TB, d *daemon) (u used) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u = used{fds: len(fds), goroutines: runtime.NumGoroutine(), heap: int64(m.HeapInuse), stacks: int64(m.StackInuse)}
	seen := make(map[uint64]bool)
	filepath.WalkDir(d.place.NICs(), func(path string, _ os.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil {
			return nil // it is gone
		}
		u.names++
		if seen[st.Ino] || strings.HasSuffix(path, ".so") { // those are the daemon's
			return nil
		}
		seen[st.Ino] = true
		u.inodes++
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			u.files += (st.Size + 4095) &^ 4095
		}
		return nil
	})
	return u
}

func (u used) less(o used) used {
	return used{u.fds - o.fds, u.goroutines - o.goroutines, u.heap - o.heap, u.stacks - o.stacks, u.files - o.files, u.inodes - o.inodes, u.names - o.names}
}

func (u used) bytes() int64 {
	return u.heap + u.stacks + u.files + u.inodes*inodeBytes + u.names*nameBytes
}

func (u used) per(n int) string {
	k := int64(n) << 10
	return fmt.Sprintf("%d KiB (%d heap, %d stacks, %d pages of files, %d inodes and names), %.2f descriptors",
		u.bytes()/k, u.heap/k, u.stacks/k, u.files/k, (u.inodes*inodeBytes+u.names*nameBytes)/k, float64(u.fds)/float64(n))
}
