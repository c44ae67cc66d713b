package drivers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// mpirun returns the command of a run of Open MPI. Ranks alternate between the client's host and the server's. Over verbs only UCX may
// carry messages.
func mpirun(j *Job, ranks int, program ...string) []string {
	argv := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(ranks), "--map-by", "node"}
	// All ranks poll, and so do daemons: together they are more than the processors.
	argv = append(argv, "--mca", "mpi_yield_when_idle", "1")
	carrier, eth := "", "lo"
	if j.Route.Client != j.Route.Server {
		// Nodes get ranks in turn, so that ranks which exchange messages belong to one route.
		nodes := j.nodes()
		each := strconv.Itoa((ranks + len(nodes) - 1) / len(nodes))
		var hosts []string
		for _, h := range nodes {
			hosts = append(hosts, h.IP+":"+each)
		}
		argv = append(argv, "--host", strings.Join(hosts, ","), "--mca", "plm_rsh_agent", j.Dir)
		// The daemons of Open MPI stay children of mpirun: mpirun then notices when one ends. They also stay in its session:
		// Linux shares processors between sessions (sched_autogroup_enabled), and with a session for each rank the vrdma
		// daemon would get one share among many.
		argv = append(argv, "--leave-session-attached")
		if len(nodes) > 2 { // mpirun starts all daemons itself: the other nodes cannot
			argv = append(argv, "--mca", "plm_rsh_no_tree_spawn", "1")
		}
		eth = j.Route.Client.Link()
		if j.Route.Client.DaemonSide != nil { // mpirun's own messages use the tap card
			argv = append(argv, "--mca", "oob_tcp_if_include", "eth1")
			if j.Cell.Transport == experiment.Verbs { // the guest's shell is static and gets no device
				argv = append(argv, "--mca", "orte_launch_agent", "orted-device")
			}
		}
	}
	switch j.Cell.Transport {
	case experiment.Verbs:
		argv = append(argv, "--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "^openib,vader,tcp")
		carrier = "rc_v,self"
		for _, v := range []string{"UCX_TLS=" + carrier, "UCX_NET_DEVICES=" + testbed.DeviceName + ":1", "UCX_LOG_LEVEL=error"} {
			argv = append(argv, "-x", v)
		}
	default:
		argv = append(argv, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", eth)
	}
	if j.wrap != "" { // in a mount namespace of its own a rank has no shared memory with mpirun
		argv = append(argv, "-x", "PMIX_MCA_gds=hash", j.wrap)
	}
	return append(argv, program...)
}

// nodes returns the hosts of all routes: client, server, client, server and so on.
func (j *Job) nodes() (list []*testbed.Host) {
	for _, r := range j.allRoutes() {
		list = append(list, r.Client, r.Server)
	}
	return list
}

// allRoutes returns the routes of the cell.
func (j *Job) allRoutes() []testbed.Route {
	if len(j.Routes) == 0 {
		return []testbed.Route{j.Route}
	}
	return j.Routes
}

// rshScriptHead begins the script that starts ranks on another host. Hosts are namespaces of one machine and share /tmp, so each gets
// its own TMPDIR: daemons of Open MPI 4.1 that make their common directory at the same moment may fail with "File exists", and mpirun
// would wait for ever.
func rshScriptHead(l *testbed.Lab) string {
	return fmt.Sprintf("#!/bin/sh\nto=$1; shift\nexport TMPDIR=%s/node-$to; mkdir -p $TMPDIR\ncase $to in\n", l.Dir)
}

// writeContainerScripts writes the scripts that start ranks in containers. mpirun and its daemon run outside, in the container's
// network. Each rank enters the container and has its files and its NIC.
func (j *Job) writeContainerScripts(l *testbed.Lab) error {
	name := filepath.Join(l.Dir, "rsh-"+j.Route.Server.Container)
	j.Dir, j.wrap = name, name+"-rank"
	there, inside := rshScriptHead(l), "#!/bin/sh\nhere=$(readlink /proc/self/ns/net)\n"
	for _, h := range j.nodes() {
		there += fmt.Sprintf("%s) exec nsenter --target %d --net -- sh -c \"$*\";;\n", h.IP, h.PID)
		inside += fmt.Sprintf("[ \"$here\" != \"$(readlink /proc/%[1]d/ns/net)\" ] || exec nsenter --target %[1]d --mount --pid --ipc --uts --root --wd -- \"$@\"\n", h.PID)
	}
	return errors.Join(os.WriteFile(j.Dir, []byte(there+"esac\n"), 0o755), os.WriteFile(j.wrap, []byte(inside), 0o755))
}

// prepareMPI writes the script that starts ranks on the other host. Its arguments are those of ssh: the host and a command.
func prepareMPI(_ context.Context, l *testbed.Lab, j *Job) error {
	if j.Route.Client == j.Route.Server {
		return nil
	}
	if j.Route.Server.DaemonSide != nil {
		j.Dir = "/usr/bin/rsh-guest"
		return nil
	}
	if j.Route.Server.Container != "" {
		return j.writeContainerScripts(l)
	}
	if j.Route.Server.Agent != nil || j.Route.Server.Container != "" {
		return fmt.Errorf("mpirun is not started in setting %s by this version: it would need ssh there", j.Cell.Setting)
	}
	text := rshScriptHead(l)
	for _, h := range j.nodes() {
		side := h.At
		if j.Cell.Transport == experiment.Verbs {
			side = h.Under
		}
		var words []string
		for _, w := range side("sh", "-c") {
			words = append(words, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		text += fmt.Sprintf("%s) exec %s \"$*\";;\n", h.IP, strings.Join(words, " "))
	}
	// The server's socket is unique to an environment.
	name := strings.ReplaceAll(strings.TrimPrefix(j.Route.Server.Socket, l.Dir), "/", "-")
	j.Dir = filepath.Join(l.Dir, fmt.Sprintf("rsh%s-%s", name, j.Cell.Transport))
	return os.WriteFile(j.Dir, []byte(text+"esac\n"), 0o755)
}

// mpiLauncher starts mpirun, which gives its ranks the device. It has no server.
func mpiLauncher(c experiment.Cell) testbed.Launcher {
	switch {
	case c.Setting == experiment.Containers && c.Transport == experiment.Verbs:
		return testbed.InNetworkWithDevice
	case c.Setting == experiment.Containers:
		return testbed.InNetwork
	case c.Transport == experiment.Verbs:
		return testbed.WithDevice
	}
	return testbed.Plain
}

// mpiNetpipeDriver runs NetPIPE over Open MPI.
var mpiNetpipeDriver = Driver{
	Commands: func(j *Job) (server, client []string) {
		return nil, mpirun(j, 2, append([]string{"NPopenmpi", "-o", "/dev/stdout"}, netpipeArgs(j)...)...)
	},
	Parse: parseNetpipe, Launcher: mpiLauncher, Prepare: prepareMPI,
}

// mpiTransferDriver sends the cell's size in bytes from each rank of one host to a rank of the other.
var mpiTransferDriver = Driver{
	Commands: func(j *Job) (server, client []string) {
		return nil, mpirun(j, 2*j.Cell.Pairs, j.program, j.sizeText())
	},
	Parse: func(j *Job, output, _ string) (ToolResult, error) {
		return parseTransfers(output, j.Cell.Pairs, int64(j.Cell.Size))
	},
	Launcher: mpiLauncher,
	Prepare: func(ctx context.Context, l *testbed.Lab, j *Job) error {
		if j.program = "/usr/bin/transfer"; j.Route.Server.DaemonSide == nil { // guests have it
			var err error
			if j.program, err = l.TransferProgram(ctx); err != nil {
				return err
			}
		}
		return prepareMPI(ctx, l, j)
	},
}

// parseTransfers reads lines "transfer N bytes B seconds S". The time is the mean of all transfers, as in the progress report. The
// bandwidth is the sum of all bytes over the time of the slowest.
func parseTransfers(output string, transfers int, size int64) (ToolResult, error) {
	var all []float64
	for line := range strings.Lines(output) {
		var n, bytes int64
		var seconds float64
		if _, err := fmt.Sscanf(line, "transfer %d bytes %d seconds %g", &n, &bytes, &seconds); err != nil {
			continue
		}
		if bytes != size || seconds <= 0 {
			return ToolResult{}, fmt.Errorf("transfer %d moved %d bytes in %v s, want %d bytes", n, bytes, seconds, size)
		}
		all = append(all, seconds)
	}
	if len(all) != transfers {
		return ToolResult{}, fmt.Errorf("%d of %d transfers were told of:\n%s", len(all), transfers, testbed.LastLines(output, 5))
	}
	sum := 0.0
	for _, s := range all {
		sum += s
	}
	total := float64(size) * float64(len(all))
	p := ToolResult{Bytes: total, Values: map[string]float64{experiment.Time: sum / float64(len(all)), experiment.Bandwidth: total / slices.Max(all)}}
	if len(all) > 1 {
		p.Values["fairness"] = experiment.Jain(all)
		p.Values["slowest"] = slices.Min(all) / slices.Max(all)
	}
	return p, nil
}
