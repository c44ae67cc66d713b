package apps

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestMPICH: ranks of MPICH exchange and check data over UCX and the device.
func TestMPICH(t *testing.T) {
	libs := libraries(t, "libmpich12", "libslurm38")
	bin := filepath.Join(harness.Unpacked(t, "mpich"), "usr/bin")
	dev := harness.Unpacked(t, "libmpich-dev")
	headers, err := filepath.Glob(filepath.Join(dev, "usr/include/*-linux-gnu/mpich"))
	if err != nil || len(headers) == 0 {
		t.Fatal("libmpich-dev has no headers")
	}
	dirs := strings.Split(strings.TrimPrefix(libs, "LD_LIBRARY_PATH="), ":")
	program := harness.CompileWith(t, "mpi", "gcc", "-I"+headers[0], "-L"+dirs[0], "-l:libmpich.so.12", "-Wl,--allow-shlib-undefined")
	d := harness.Device(t)
	for _, tls := range []string{"rc_v,self", "ud_v,self"} {
		t.Run(tls, func(t *testing.T) {
			d.Carried(t, harness.Traffic{Bytes: 16 << 20}, func() {
				out := d.Run(t, 2*minute, with([]string{libs, "UCX_TLS=" + tls, "UCX_NET_DEVICES=rxe0:1"}, filepath.Join(bin, "mpiexec.hydra"), "-n", "2", program)...)
				for rank := range 2 {
					if !strings.Contains(out, fmt.Sprintf("ok rank %d of 2", rank)) {
						t.Errorf("want both ranks to report ok, got:\n%s", out)
					}
				}
			})
		})
	}
	measureMPI(t, place{"one host", d, d, "127.0.0.1"}, "MPICH "+version(t, "env", libs, filepath.Join(bin, "mpichversion")), "vrdma run -- mpiexec -n 2 PROGRAM, UCX_TLS=rc_v,self",
		func(tls string) []string {
			return with([]string{libs, "UCX_TLS=" + tls, "UCX_NET_DEVICES=" + device(tls)}, filepath.Join(bin, "mpiexec.hydra"), "-n", "2",
				filepath.Join(harness.Unpacked(t, "netpipe-mpich2"), "usr/bin/NPmpich2"))
		})
}

// TestOpenMPI measures Open MPI over UCX. Data is compared by the test of this name in package test.
func TestOpenMPI(t *testing.T) {
	if !recording() && !harness.All() {
		t.Skip("the long form")
	}
	harness.Need(t, "mpirun", "NPopenmpi")
	d := harness.Device(t)
	measureMPI(t, place{"one host", d, d, "127.0.0.1"}, "Open MPI "+version(t, "mpirun", "--version"), "vrdma run -- mpirun -np 2 --mca pml ucx -x UCX_TLS=rc_v,self PROGRAM",
		func(tls string) []string {
			mode := []string{"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}
			if tls == "rc_v,self" {
				mode = []string{"--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp", "-x", "UCX_TLS=" + tls, "-x", "UCX_NET_DEVICES=" + device(tls), "-x", "UCX_LOG_LEVEL=warn"}
			}
			return append(append([]string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"}, mode...), "NPopenmpi")
		})
}

// device is UCX's name of the device that a transport uses on one host.
func device(tls string) string {
	if strings.HasPrefix(tls, "tcp") {
		return "lo"
	}
	return "rxe0:1"
}

// measureMPI measures an MPI with NetPIPE, for the page.
func measureMPI(t *testing.T, p place, program, started string, command func(tls string) []string) {
	if !recording() && !harness.All() {
		return
	}
	for _, c := range []struct {
		size, times    int
		what, unit, by string
		lower          bool
	}{
		{8, 2000, "one way, 8 B", "µs", `in\s+([0-9.]+) usec`, true},
		{65536, 500, "bandwidth, 64 KiB", "Mb/s", `([0-9.]+) Mbps`, false},
		{1 << 20, 100, "bandwidth, 1 MiB", "Mb/s", `([0-9.]+) Mbps`, false},
	} {
		run := func(tls string) func(t *testing.T) float64 {
			return func(t *testing.T) float64 {
				argv := append(command(tls), "-p", "0", "-l", fmt.Sprint(c.size), "-u", fmt.Sprint(c.size), "-n", fmt.Sprint(c.times), "-o", filepath.Join(t.TempDir(), "out"))
				if tls != "rc_v,self" {
					argv = plain(argv...)
				}
				return number(t, p.client.Run(t, 2*minute, argv...), c.by)
			}
		}
		p.compare(t, Row{Program: program + ", NetPIPE", Started: started, What: c.what, Unit: c.unit, Lower: c.lower, Checked: "every byte, sizes to 4 MiB"},
			uint64(c.times), run("rc_v,self"), run("tcp,self"))
	}
}
