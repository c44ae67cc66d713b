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
	// Messages is how many messages a latency tool sends; 0: the default.
	Messages int
	// Kernel is the device of transport kernel, else nil.
	Kernel *testbed.KernelDevice
	// program and Dir are set by Prepare.
	program, Dir string
	wrap         string // the script that starts an MPI rank in a container
}

// ServerIP is the address of the server.
func (j *Job) ServerIP() string { return j.Route.Server.IP }

func (j *Job) portText() string { return strconv.Itoa(j.Port) }

func (j *Job) sizeText() string { return strconv.FormatInt(int64(j.Cell.Size), 10) }

func (j *Job) secondsText() string { return strconv.Itoa(max(j.Seconds, 1)) }

func (j *Job) waitsForEvents() bool { return j.Cell.Wait == experiment.Event }

// A Driver says how a tool runs for a cell, and reads its output.
type Driver struct {
	// Commands returns the commands of server and client. If server is nil, client runs both sides of all pairs.
	Commands func(j *Job) (server, client []string)
	// Parse reads the output of client and server.
	Parse func(j *Job, client, server string) (ToolResult, error)
	// Explain makes the text of a failure readable, such as an exit status that only the tool's source explains; nil: it is.
	Explain func(text string) string
	// Launcher replaces the launcher of the cell's transport; nil: it does not.
	Launcher func(c experiment.Cell) testbed.Launcher
	// Prepare makes what a run needs, once for an environment; may be nil.
	Prepare func(ctx context.Context, l *testbed.Lab, j *Job) error
	// Interrupt means that the server prints its results when it is interrupted.
	Interrupt bool
	// Counted means that the tool sends a number of messages (Job.Messages). Others run for a time (Job.Seconds).
	Counted bool
	// Windowed means that clients can run until they are stopped, and print a line every second.
	Windowed bool
}

// A failure is an error with the text that a driver made of it.
type failure struct {
	text string
	error
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() error { return f.error }

// Failure returns a tool's error with its text explained.
func (d *Driver) Failure(err error) error {
	if d.Explain == nil {
		return err
	}
	return &failure{d.Explain(err.Error()), err}
}

// A ToolResult is what a tool measured, in seconds, bytes/s and 1/s.
type ToolResult struct {
	Values  map[string]float64
	Samples int64
	// Bytes is how much was moved, if the tool says so.
	Bytes float64
}

// Tools are the drivers by the names that experiments use.
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
	"sockperf_poll":     sockperfDriver("ping-pong", "--tcp", "--nonblocked"),
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

// latencyMessages is how many messages a latency tool sends. A 99.9th percentile needs ten thousand.
const latencyMessages = 10000

// latencyCount is lower between emulated guests, where a message takes a millisecond.
func latencyCount(c experiment.Cell) int {
	if experiment.Guests(c.Setting) {
		return 200
	}
	return latencyMessages
}
