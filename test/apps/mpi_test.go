package apps

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// An mpi is a way to start ranks.
type mpi struct {
	name    string // with the version
	program string // built for it
	// command starts ranks with the device, or with TCP. agent starts a process on another host, as ssh does.
	command func(p place, rdma bool, ranks int, agent string) []string
}

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
	compile := func(name string) string {
		return harness.CompileWith(t, name, "gcc", "-I"+headers[0], "-L"+dirs[0], "-l:libmpich.so.12", "-Wl,--allow-shlib-undefined")
	}
	program := compile("mpi")
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
	if !recording() && !harness.All() {
		return
	}
	measureMPI(t, mpi{"MPICH " + version(t, "env", libs, filepath.Join(bin, "mpichversion")), compile("mpibench"), func(p place, rdma bool, ranks int, agent string) []string {
		tls := "tcp,self"
		if rdma {
			tls = "rc_v,self"
		}
		argv := with([]string{libs, "UCX_TLS=" + tls, "UCX_NET_DEVICES=" + p.device(tls), "UCX_LOG_LEVEL=warn"}, filepath.Join(bin, "mpiexec.hydra"), "-n", strconv.Itoa(ranks))
		if agent != "" {
			argv = append(argv, "-launcher", "rsh", "-launcher-exec", agent, "-hosts", p.ip+","+p.peer)
		}
		return argv
	}})
}

// TestOpenMPI measures Open MPI over UCX. Data is compared by the test of this name in package test.
func TestOpenMPI(t *testing.T) {
	if !recording() && !harness.All() {
		t.Skip("the long form")
	}
	harness.Need(t, "mpirun", "mpicc")
	measureMPI(t, mpi{"Open MPI " + version(t, "mpirun", "--version"), harness.CompileWith(t, "mpibench", "mpicc"), func(p place, rdma bool, ranks int, agent string) []string {
		argv := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(ranks)}
		if agent != "" {
			argv = append(argv, "--map-by", "node", "--host", fmt.Sprintf("%s:%d,%s:%d", p.ip, ranks, p.peer, ranks), "--mca", "plm_rsh_agent", agent, "--leave-session-attached")
		}
		if !rdma {
			return append(argv, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", p.device("tcp"))
		}
		return append(argv, "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib,vader,tcp",
			"-x", "UCX_TLS=rc_v,self", "-x", "UCX_NET_DEVICES=rxe0:1", "-x", "UCX_LOG_LEVEL=warn")
	}})
}

// device is UCX's and Open MPI's name of the device that a transport uses.
func (p place) device(tls string) string {
	switch {
	case !strings.HasPrefix(tls, "tcp"):
		return "rxe0:1"
	case p.client == p.server:
		return "lo"
	}
	return "eth0"
}

// agent writes the script that starts a process on one of the hosts, as ssh does.
func (p place) agent(t *testing.T, rdma bool) string {
	t.Helper()
	if p.client == p.server {
		return ""
	}
	text := "#!/bin/sh\nto=$1; shift\nexport TMPDIR=" + harness.Directory(t, nil) + "/$to; mkdir -p $TMPDIR\ncase $to in\n"
	for ip, d := range map[string]*harness.Daemon{p.ip: p.server, p.peer: p.client} {
		argv := []string{"sh", "-c"}
		if !rdma {
			argv = plain(argv...)
		}
		text += ip + ") exec " + strings.Join(d.ProgramCommand(argv...).Args, " ") + " \"$*\";;\n"
	}
	name := filepath.Join(harness.Directory(t, nil), "agent")
	if err := os.WriteFile(name, []byte(text+"esac\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// measureMPI measures messages, all-reduce and all-to-all, for the page.
func measureMPI(t *testing.T, m mpi) {
	places(t, func(t *testing.T, p place) {
		for _, c := range []struct {
			ranks int
			what  []string
		}{
			{2, []string{"message 1", "message 1024", "message 16384", "message 65536", "message 1048576", "message 4194304"}},
			{4, []string{"allreduce 8", "allreduce 65536", "allreduce 1048576", "alltoall 8", "alltoall 65536"}},
			{8, []string{"allreduce 8", "allreduce 65536", "alltoall 8"}},
		} {
			var rows []Row
			for _, what := range c.what {
				rows = append(rows, Row{Program: m.name, Started: "vrdma run -- mpirun -np RANKS PROGRAM, UCX_TLS=rc_v,self", What: fmt.Sprintf("%s B, %d ranks", what, c.ranks),
					Unit: "µs", Lower: true, Checked: "every byte of the last round"})
			}
			run := func(rdma bool) func(t *testing.T) []float64 {
				return func(t *testing.T) (values []float64) {
					argv := append(m.command(p, rdma, c.ranks, p.agent(t, rdma)), m.program, harness.Pick("100", "300"))
					if !rdma {
						argv = plain(argv...)
					}
					out := p.server.Run(t, 2*minute, argv...)
					for rank := range c.ranks {
						if !strings.Contains(out, fmt.Sprintf("ok rank %d of %d", rank, c.ranks)) {
							t.Errorf("rank %d does not say that all is well:\n%s", rank, out)
						}
					}
					for _, what := range c.what {
						values = append(values, number(t, out, what+`: (\S+) us`))
					}
					return values
				}
			}
			p.compareAll(t, rows, 200, run(true), run(false))
		}
	})
}
