package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"vrdma.dev/vrdma/examples/kv/load"
	"vrdma.dev/vrdma/examples/kv/store"
)

// A Row is a line of the table: one way to read, one mix, one value size.
type Row struct {
	Way        string  `json:"way"`
	Mix        string  `json:"mix"`
	Value      int     `json:"value_bytes"`
	Clients    int     `json:"clients"`
	Writers    int     `json:"writers"`
	Operations int     `json:"operations"`
	Rate       float64 `json:"operations_per_second"`
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p999_us"`
	// Processor time per operation, in microseconds.
	Server float64 `json:"server_cpu_us"`
	Client float64 `json:"client_cpu_us"`
	Daemon float64 `json:"daemon_cpu_us"`
	// Messages were handled by the server process. Torn counts one-sided reads that were repeated, Asked those that fell back to
	// the server.
	Messages uint64 `json:"server_messages"`
	Torn     uint64 `json:"torn"`
	Asked    uint64 `json:"asked"`
}

// Run runs the experiment and prints its table. It shows progress on a terminal; nil: none.
func (o *Options) Run(ctx context.Context, out, progress io.Writer) (err error) {
	runs, err := o.runs()
	if err != nil {
		return err
	}
	at := o.Server
	if at == "" {
		var stop func() error
		if at, stop, err = o.startServer(ctx, most(runs)); err != nil {
			return err
		}
		defer func() {
			if e := stop(); err == nil && e != nil {
				err = fmt.Errorf("the server: %w", e)
			}
		}()
	}
	d, err := store.NewDialer(ctx, o.Device)
	if err != nil {
		return err
	}
	d.Poll = o.Poll
	defer d.Close()
	if err := o.fits(ctx, d, at, most(runs)); err != nil {
		return err
	}
	if progress == nil {
		progress = io.Discard
	}
	keys := o.keys()
	var rows []Row
	for i, r := range runs {
		fmt.Fprintf(progress, "\r%d of %d: %-4s %-7s %5d bytes ", i+1, len(runs), r.way, r.mix, r.value)
		spec := load.Spec{
			Dial: o.dial(d, r.way, at), Clients: o.Clients, Writers: o.Writers, Operations: o.Operations,
			Reads: readsOf[r.mix], Value: r.value, Keys: keys,
		}
		result, err := spec.Run(ctx)
		if err != nil {
			return fmt.Errorf("%s, %s, %d bytes: %w", r.way, r.mix, r.value, err)
		}
		rows = append(rows, o.row(r, result))
	}
	fmt.Fprint(progress, "\r\033[K")
	if o.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(rows)
	}
	return o.print(out, rows)
}

// fits asks the server whether it has enough keys and accepts the value sizes.
func (o *Options) fits(ctx context.Context, d *store.Dialer, at string, value int) error {
	c, err := d.DialRPC(ctx, at)
	if err != nil {
		return err
	}
	defer c.Close()
	if c.Keys() < o.Keys || c.MaxValue() < value {
		return fmt.Errorf("the server at %s has %d keys and takes values of %d bytes, too few for --keys %d and --values %d: start it with more",
			at, c.Keys(), c.MaxValue(), o.Keys, value)
	}
	return nil
}

// dial returns a function that connects in one of the ways.
func (o *Options) dial(d *store.Dialer, way, at string) func(context.Context) (store.Client, error) {
	return func(ctx context.Context) (store.Client, error) {
		switch way {
		case wayRPC:
			return d.DialRPC(ctx, at)
		case wayRead:
			return d.DialOneSided(ctx, at)
		default:
			return store.DialTCP(ctx, at)
		}
	}
}

func (o *Options) row(r run, got *load.Result) Row {
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	each := func(ns uint64) float64 { return float64(ns) / 1e3 / float64(got.Operations) }
	return Row{
		Way: r.way, Mix: r.mix, Value: r.value, Clients: o.Clients, Writers: o.Writers, Operations: got.Operations, Rate: got.Rate(),
		P50: us(got.Percentile(50)), P99: us(got.Percentile(99)), P999: us(got.Percentile(99.9)),
		Server: each(got.Server), Client: each(got.Client), Daemon: each(got.Daemon),
		Messages: got.Messages, Torn: got.Torn, Asked: got.Asked,
	}
}

// print prints the table.
func (o *Options) print(out io.Writer, rows []Row) error {
	fmt.Fprintf(out, "%d operations in each row, %d %s at once, %d that only update, %d keys, %s\n\n",
		o.Operations, o.Clients, plural(o.Clients, "client", "clients"), o.Writers, o.Keys, o.skew)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "way\tmix\tvalue\toperations/s\tp50 µs\tp99 µs\tp99.9 µs\tCPU µs: server\tclient\tdaemon\tserver's messages\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%d\t\n",
			r.Way, r.Mix, r.Value, r.Rate, r.P50, r.P99, r.P999, r.Server, r.Client, r.Daemon, r.Messages)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nCPU is the processor time of an operation. The daemon is the NIC: a real one works beside the processor.")
	for _, r := range rows {
		if r.Way == wayRead && r.Messages == 0 {
			fmt.Fprintf(out, "For %d one-sided reads the server handled no message at all.\n", r.Operations)
			break
		}
	}
	torn, asked := uint64(0), uint64(0)
	for _, r := range rows {
		torn, asked = torn+r.Torn, asked+r.Asked
	}
	if torn > 0 {
		fmt.Fprintf(out, "%d one-sided reads met a writer and were made again; for %d keys the server was asked.\n", torn, asked)
	}
	return nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
