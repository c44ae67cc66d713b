package drivers

import (
	"context"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A Job is one run of a tool for a cell.
type Job struct {
	Cell    experiment.Cell
	Route   testbed.Route
	Routes  []testbed.Route // of all containers or guests of the cell, for a tool that runs all pairs with one command
	Port    int
	Seconds int
	// kernel is the kernel's device for transport kernel, else nil.
	Kernel *testbed.KernelDevice
	// program and dir are what a driver's prepare made.
	program, Dir string
	wrap         string // what a rank is started with, in a container
}

func (j *Job) ServerIP() string { return j.Route.Server.IP }

func (j *Job) portText() string { return strconv.Itoa(j.Port) }

func (j *Job) sizeText() string { return strconv.FormatInt(int64(j.Cell.Size), 10) }

func (j *Job) secondsText() string { return strconv.Itoa(max(j.Seconds, 1)) }

func (j *Job) waitsForEvents() bool { return j.Cell.Wait == experiment.Event }

// A Driver is how a tool is run for a cell, and what it prints.
type Driver struct {
	// commands are those of server and client. Without a server the client's command has both sides
	// of all pairs.
	Commands func(j *Job) (server, client []string)
	// parse reads what the client printed, and what the server did.
	Parse func(j *Job, client, server string) (ToolResult, error)
	// way is how its programs are run, if not as those of their transport are.
	Launcher func(c experiment.Cell) testbed.Launcher
	// prepare makes what a run needs, once for a place; may be nil.
	Prepare func(ctx context.Context, l *testbed.Lab, j *Job) error
	// asked: the server prints what it got when it is interrupted.
	Interrupt bool
	// windowed: the clients can run until they are told to end, and print a line every second.
	Windowed bool
}

// ToolResult is what a tool measured, in seconds, bytes a second and a second.
type ToolResult struct {
	Values  map[string]float64
	Samples int64
	// bytes is how much was moved, if the tool says so.
	Bytes float64
}

// Tools are of the tools that experiments name.
var Tools = map[string]Driver{
	"ib_send_bw":        perftestDriver("ib_send_bw"),
	"ib_write_bw":       perftestDriver("ib_write_bw"),
	"ib_read_bw":        perftestDriver("ib_read_bw"),
	"ib_atomic_bw":      perftestDriver("ib_atomic_bw"),
	"ib_atomic_lat":     perftestDriver("ib_atomic_lat"),
	"ib_send_lat":       perftestDriver("ib_send_lat"),
	"ib_write_lat":      perftestDriver("ib_write_lat"),
	"ib_read_lat":       perftestDriver("ib_read_lat"),
	"tcp_bw":            qperfDriver("tcp_bw", "bw", experiment.Bandwidth),
	"tcp_lat":           qperfDriver("tcp_lat", "latency", experiment.Latency),
	"rc_bw":             qperfDriver("rc_bw", "bw", experiment.Bandwidth),
	"rc_bi_bw":          qperfDriver("rc_bi_bw", "bw", experiment.Bandwidth),
	"rc_rdma_read_bw":   qperfDriver("rc_rdma_read_bw", "bw", experiment.Bandwidth),
	"rc_rdma_write_bw":  qperfDriver("rc_rdma_write_bw", "bw", experiment.Bandwidth),
	"rc_lat":            qperfDriver("rc_lat", "latency", experiment.Latency),
	"rc_rdma_read_lat":  qperfDriver("rc_rdma_read_lat", "latency", experiment.Latency),
	"rc_rdma_write_lat": qperfDriver("rc_rdma_write_lat", "latency", experiment.Latency),
	"iperf3":            iperf3Driver,
	"sockperf":          sockperfDriver("ping-pong", "--tcp"),
	"sockperf_udp":      sockperfDriver("ping-pong"),
	"sockperf_bw":       sockperfDriver("throughput", "--tcp"),
	"sockperf_udp_bw":   sockperfDriver("throughput"),
	"NPtcp":             netpipeDriver,
	"NPopenmpi":         mpiNetpipeDriver,
	"mpi_transfer":      mpiTransferDriver,
	"cmtime":            cmtimeDriver,
	"ibv_devinfo":       devinfoDriver,
	"kv_update":         keyValueDriver("rpc", "updates"),
	"kv_rpc":            keyValueDriver("rpc", "reads"),
	"kv_read":           keyValueDriver("read", "reads"),
	"kv_tcp":            keyValueDriver("tcp", "reads"),
	"vrdma_cp":          copyDriver,
	"fio_rdma":          fioDriver,
}

// latencyMessages is how many a latency tool sends: for a 99.9th percentile it takes ten thousand.
const latencyMessages = 10000

// latencyCount is less between emulated guests, where each takes a millisecond.
func latencyCount(c experiment.Cell) int {
	if experiment.Guests(c.Setting) {
		return 200
	}
	return latencyMessages
}
