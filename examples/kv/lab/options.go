package lab

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/examples/kv/load"
	"vrdma.dev/vrdma/examples/kv/store"
	"vrdma.dev/vrdma/verbs"
)

// Options describe an experiment.
type Options struct {
	Device verbs.Options
	// Start is the command that starts a server (Service.Serve). It is used if Server is empty.
	Start []string

	Server     string // address and port of a running server
	Operations int
	Clients    int
	Writers    int
	Keys       int
	Poll       bool
	JSON       bool
	ways       list
	mixes      list
	values     list
	skew       string
}

// A list is a flag of several values.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(s string) error {
	*l = strings.Split(s, ",")
	return nil
}

// The ways to read, in the order of the table.
const (
	wayRPC  = "rpc"
	wayRead = "read"
	wayTCP  = "tcp"
)

// readsOf is the percentage of reads in each mix.
var readsOf = map[string]int{"A": 50, "B": 95, "C": 100, "updates": 0, "reads": 100}

// Flags adds the options to a set of flags.
func (o *Options) Flags(f *flag.FlagSet) {
	o.ways, o.mixes, o.values = list{wayRPC, wayRead, wayTCP}, list{"updates", "reads"}, list{"8"}
	f.StringVar(&o.Server, "server", "", "a server that runs already, `ADDRESS:PORT`; otherwise one is started here")
	f.IntVar(&o.Operations, "operations", 100_000, "how many of each kind")
	f.IntVar(&o.Clients, "clients", 1, "how many at once")
	f.IntVar(&o.Writers, "writers", 0, "how many others update all the time meanwhile")
	f.IntVar(&o.Keys, "keys", 32<<10, "how many keys the store has")
	f.BoolVar(&o.Poll, "poll", false, "clients poll instead of sleeping until they are woken")
	f.BoolVar(&o.JSON, "json", false, "print the table as JSON")
	f.Var(&o.ways, "ways", "how to read: rpc, read (one-sided), tcp")
	f.Var(&o.mixes, "mixes", "what to do: updates, reads, or YCSB's A (half of each), B (95 % reads), C (reads)")
	f.Var(&o.values, "values", "how many bytes a value has, 8 to 65536, several for several runs")
	f.StringVar(&o.skew, "skew", "uniform", "which keys: uniform or zipfian")
}

// A run is one row of the table.
type run struct {
	way, mix string
	value    int
}

// Check returns an error for invalid options.
func (o *Options) Check() error {
	_, err := o.runs()
	return err
}

// runs returns the requested rows.
func (o *Options) runs() (rows []run, err error) {
	for name, n := range map[string]int{"operations": o.Operations, "clients": o.Clients, "keys": o.Keys} {
		if n < 1 {
			return nil, fmt.Errorf("--%s %d: want at least 1", name, n)
		}
	}
	if o.Writers < 0 {
		return nil, fmt.Errorf("--writers %d: want at least 0", o.Writers)
	}
	if o.skew != "uniform" && o.skew != "zipfian" {
		return nil, fmt.Errorf("--skew %s: choose uniform or zipfian", o.skew)
	}
	for _, v := range o.values {
		value, err := strconv.Atoi(v)
		if err != nil || value < 8 || value > store.MaxValue {
			return nil, fmt.Errorf("--values %s: want numbers from 8 to %d", v, store.MaxValue)
		}
		for _, mix := range o.mixes {
			if _, ok := readsOf[mix]; !ok {
				return nil, fmt.Errorf("--mixes %s: choose among updates, reads, A, B, C", mix)
			}
			for _, way := range o.ways {
				if !slices.Contains([]string{wayRPC, wayRead, wayTCP}, way) {
					return nil, fmt.Errorf("--ways %s: choose among rpc, read, tcp", way)
				}
				if way == wayRead && mix == "updates" {
					continue // they are RPCs
				}
				rows = append(rows, run{way, mix, value})
			}
		}
	}
	return rows, nil
}

// keys returns the source of keys.
func (o *Options) keys() load.Keys {
	if o.skew == "zipfian" {
		return load.NewZipfian(uint64(o.Keys))
	}
	return load.Uniform(o.Keys)
}

// most returns the longest value of all rows.
func most(rows []run) (n int) {
	for _, r := range rows {
		n = max(n, r.value)
	}
	return n
}
