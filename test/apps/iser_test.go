package apps

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// initiator is the name that tgtd lets in. Its iSER wants one, although its TCP does not.
const initiator = "iqn.2010-11.org.example:initiator"

// tgt is a running tgtd: target 1 over iSER, target 2 over TCP, each with a disk.
type tgt struct {
	place
	port  int
	disks [2]string // over iSER, over TCP
	env   []string
}

const diskSize = 64 << 20

func startTgt(t *testing.T, p place) *tgt {
	t.Helper()
	dir := harness.Directory(t, nil)
	g := &tgt{place: p, port: harness.FreePort(t), env: []string{"TGT_IPC_SOCKET=" + filepath.Join(dir, "tgtd"), libraries(t, "libiscsi7")}}
	sbin := filepath.Join(harness.Unpacked(t, "tgt"), "usr/sbin")
	// tgtd 1.0.85 rejects every --iser port= ("invalid port supplied"), also without vrdma: it reads errno of something else.
	server := p.server.Launch(t, with(g.env, filepath.Join(sbin, "tgtd"), "-f", "--iser", "pool_sz_mb=64", "--iscsi", fmt.Sprintf("portal=%s:%d", p.ip, g.port))...)
	t.Cleanup(server.End) // it does not end at SIGTERM while it has targets
	admin := func(args ...string) int {
		a := p.server.Launch(t, plain(with(g.env, append([]string{filepath.Join(sbin, "tgtadm")}, args...)...)...)...)
		return a.Wait(t, minute)
	}
	if !harness.Poll(minute, func() bool { return admin("--op", "show", "--mode", "sys") == 0 }) {
		t.Fatalf("tgtd does not answer:\n%s", server.Output())
	}
	for i, driver := range []string{"iser", "iscsi"} {
		g.disks[i] = filepath.Join(dir, driver)
		if err := os.WriteFile(g.disks[i], nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(g.disks[i], diskSize); err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint(i + 1)
		for _, args := range [][]string{
			{"--mode", "target", "--op", "new", "--tid", id, "--targetname", "iqn.2010-11.org.example:" + driver},
			{"--mode", "logicalunit", "--op", "new", "--tid", id, "--lun", "1", "--backing-store", g.disks[i]},
			{"--mode", "target", "--op", "bind", "--tid", id, "--initiator-address", "ALL"},
			{"--mode", "target", "--op", "bind", "--tid", id, "--initiator-name", initiator},
		} {
			if code := admin(append([]string{"--lld", driver}, args...)...); code != 0 {
				t.Fatalf("tgtadm %q: exit %d\n%s", args, code, server.Output())
			}
		}
	}
	return g
}

// perf runs iscsi-perf and returns I/Os a second.
func (g *tgt) perf(t *testing.T, rdma bool, blocks, seconds int) float64 {
	t.Helper()
	url := fmt.Sprintf("iscsi://%s:%d/iqn.2010-11.org.example:iscsi/1", g.ip, g.port)
	if rdma {
		url = fmt.Sprintf("iser://%s:3260/iqn.2010-11.org.example:iser/1", g.ip)
	}
	argv := with(g.env, filepath.Join(harness.Unpacked(t, "libiscsi-bin"), "usr/bin/iscsi-perf"),
		"-i", initiator, "-m", "16", "-b", fmt.Sprint(blocks), "-t", fmt.Sprint(seconds), "-r", url)
	if !rdma {
		argv = plain(argv...)
	}
	return number(t, g.client.Run(t, minute, argv...), `iops average (\d+) `)
}

// TestISER: QEMU's block layer writes and reads at random over iSER, 16 operations at a time, and the disk has what was written.
func TestISER(t *testing.T) {
	places(t, func(t *testing.T, p place) {
		g := startTgt(t, p)
		t.Run("data", func(t *testing.T) { g.mixed(t, harness.Pick(300, 3000)) })
		version := version(t, filepath.Join(harness.Unpacked(t, "tgt"), "usr/sbin/tgtd"), "-V")
		for _, blocks := range []int{8, 128} {
			g.compare(t, Row{
				Program: "tgtd " + version + ", libiscsi's iscsi-perf",
				Started: "vrdma run -- tgtd -f; vrdma run -- iscsi-perf -m 16 -r iser://…",
				What:    fmt.Sprintf("random reads of %d KiB", blocks/2), Unit: "/s",
				Checked: "qemu-io over iSER: reads of patterns, the disk's content",
			}, 1000, func(t *testing.T) float64 { return g.perf(t, true, blocks, seconds()) },
				func(t *testing.T) float64 { return g.perf(t, false, blocks, seconds()) })
		}
	})
}

// seconds is how long a program measures.
func seconds() int {
	if recording() {
		return 3
	}
	return 1
}

// mixed writes and reads n times at random over iSER and compares.
func (g *tgt) mixed(t *testing.T, n int) {
	const slot = 64 << 10
	const slots, together = 256, 16
	var args []string
	model := make([]byte, slots*slot)
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < n; i += together {
		var reads []string
		for _, at := range random.Perm(slots)[:together] {
			size, pattern := 4096*(1+random.IntN(16)), byte(random.IntN(256))
			args = append(args, "-c", fmt.Sprintf("aio_write -q -P %d %d %d", pattern, at*slot, size))
			reads = append(reads, "-c", fmt.Sprintf("aio_read -q -P %d %d %d", pattern, at*slot, size))
			copy(model[at*slot:], bytes.Repeat([]byte{pattern}, size))
		}
		args = append(append(append(args, "-c", "aio_flush"), reads...), "-c", "aio_flush")
	}
	disk := fmt.Sprintf("driver=iscsi,transport=iser,portal=%s:3260,target=iqn.2010-11.org.example:iser,lun=1,initiator-name=%s", g.ip, initiator)
	modules, err := filepath.Glob(filepath.Join(harness.Unpacked(t, "qemu-block-extra"), "usr/lib/*-linux-gnu/qemu"))
	if err != nil || len(modules) == 0 {
		t.Fatal("qemu-block-extra has no modules")
	}
	argv := append(with(append([]string{"QEMU_MODULE_DIR=" + modules[0]}, g.env...), filepath.Join(harness.Unpacked(t, "qemu-utils"), "usr/bin/qemu-io"), "--image-opts", disk), args...)
	var out string
	g.server.Carried(t, harness.Traffic{Packets: uint64(n)}, func() { out = g.client.Run(t, 2*minute, argv...) })
	if bytes.Contains([]byte(out), []byte("failed")) || bytes.Contains([]byte(out), []byte("error")) {
		t.Errorf("qemu-io reports:\n%s", harness.Tail(out, 20))
	}
	got, err := os.ReadFile(g.disks[0])
	if err != nil {
		t.Fatal(err)
	}
	for at := range slots {
		if !bytes.Equal(got[at*slot:(at+1)*slot], model[at*slot:(at+1)*slot]) {
			t.Fatalf("the disk has other data in slot %d than was written", at)
		}
	}
}
