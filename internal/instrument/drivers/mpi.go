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

// mpirun is the command of a run of Open MPI: the first rank, and every second one, on the client's
// host, the others on the server's. Over verbs UCX carries the messages, and nothing else may.
func mpirun(j *Job, ranks int, program ...string) []string {
	argv := []string{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", strconv.Itoa(ranks), "--map-by", "node"}
	// All ranks poll, and so do daemons: together they are more than processors.
	argv = append(argv, "--mca", "mpi_yield_when_idle", "1")
	carrier, eth := "", "lo"
	if j.Route.Client != j.Route.Server {
		// A rank of each node in turn, so ranks that talk to each other are of one route.
		nodes := j.nodes()
		each := strconv.Itoa((ranks + len(nodes) - 1) / len(nodes))
		var hosts []string
		for _, h := range nodes {
			hosts = append(hosts, h.IP+":"+each)
		}
		argv = append(argv, "--host", strings.Join(hosts, ","), "--mca", "plm_rsh_agent", j.Dir)
		// What mpirun starts on a node stays its child: if it ends, mpirun says so and ends, too, instead of waiting for it for ever. And it
		// stays in the session: Linux shares processors between sessions (sched_autogroup_enabled), so eight ranks that poll, with one
		// each, leave the daemon a ninth. Four transfers of 1 GB took 5.4 to 6.7 s that way, and 1.0 to 1.8 s in one session.
		argv = append(argv, "--leave-session-attached")
		if len(nodes) > 2 { // mpirun starts all by itself: the others cannot
			argv = append(argv, "--mca", "plm_rsh_no_tree_spawn", "1")
		}
		eth = j.Route.Client.Link()
		if j.Route.Client.DaemonSide != nil { // what mpirun says itself goes the ordinary way
			argv = append(argv, "--mca", "oob_tcp_if_include", "eth1")
			if j.Cell.Transport == experiment.Verbs { // the guest's shell is static, and gives nobody a device
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
	if j.wrap != "" { // a mount of its own has no shared memory of mpirun's
		argv = append(argv, "-x", "PMIX_MCA_gds=hash", j.wrap)
	}
	return append(argv, program...)
}

// nodes are the hosts of all routes, clients and servers in turn.
func (j *Job) nodes() (list []*testbed.Host) {
	for _, r := range j.allRoutes() {
		list = append(list, r.Client, r.Server)
	}
	return list
}

// allRoutes are the routes of the cell.
func (j *Job) allRoutes() []testbed.Route {
	if len(j.Routes) == 0 {
		return []testbed.Route{j.Route}
	}
	return j.Routes
}

// rshScriptHead is how what starts ranks elsewhere begins. Nodes here are namespaces of one machine, and see one /tmp. Each has a directory for
// temporary files of its own: when several daemons of Open MPI 4.1 make their common one at the same moment, one of them may find that it
// exists, give up, and leave mpirun waiting. Of thirty starts with eight nodes five failed.
func rshScriptHead(l *testbed.Lab) string {
	return fmt.Sprintf("#!/bin/sh\nto=$1; shift\nexport TMPDIR=%s/node-$to; mkdir -p $TMPDIR\ncase $to in\n", l.Dir)
}

// writeContainerScripts writes what starts ranks in containers: mpirun and its daemon are outside, in the container's network, and
// each rank goes inside by itself. Inside it has what the container has: its files, and its NIC.
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

// prepareMPI writes what starts ranks on the other host, as ssh would: it is given the host and a command.
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
	// The first socket's name is no other place's; a container's directory has the daemon's name above it.
	name := strings.ReplaceAll(strings.TrimPrefix(j.Route.Server.Socket, l.Dir), "/", "-")
	j.Dir = filepath.Join(l.Dir, fmt.Sprintf("rsh%s-%s", name, j.Cell.Transport))
	return os.WriteFile(j.Dir, []byte(text+"esac\n"), 0o755)
}

// mpiLauncher: mpirun gives its ranks the device; nobody listens.
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

// mpiNetpipeDriver is NetPIPE over Open MPI.
var mpiNetpipeDriver = Driver{
	Commands: func(j *Job) (server, client []string) {
		return nil, mpirun(j, 2, append([]string{"NPopenmpi", "-o", "/dev/stdout"}, netpipeArgs(j)...)...)
	},
	Parse: parseNetpipe, Launcher: mpiLauncher, Prepare: prepareMPI,
}

// mpiTransferDriver sends as many bytes as the cell's size from each rank of one host to one of the other's.
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

// parseTransfers reads a line for each transfer: transfer N bytes B seconds S. The value is the mean over
// transfers, as the progress report gives it, and the sum of what they moved in the time of the slowest.
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
