// Kv is a key-value store over RDMA, and an experiment with it: how much do reads cost, and whom, if they
// go to the server as messages over RDMA, as RDMA READs past it, or over TCP? It is a static Go binary.
//
//	kv                             # server and clients on this host, and a table
//	kv -mixes A,B,C -values 8,128,4096 -clients 8 -skew zipfian
//	kv serve -listen 192.0.2.1:7471
//	kv -server 192.0.2.1:7471      # clients on another host
//
// `vrdma lab` is the same. Package store has the store, and why its one-sided reads can be trusted;
// package load makes the work; package lab puts both together.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"vrdma.dev/vrdma/examples/kv/lab"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/verbs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kv:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	serves := len(args) > 0 && args[0] == "serve"
	if serves {
		args = args[1:]
	}
	f := flag.NewFlagSet("kv", flag.ExitOnError)
	var device verbs.Options
	f.StringVar(&device.Socket, "socket", "", "the daemon's socket (default: VRDMA_SOCKET, else this user's own)")
	kernel := f.Bool("kernel", false, "use the kernel's rxe instead of a daemon's device")
	var o lab.Options
	var s lab.Service
	if serves {
		s.Flags(f)
	} else {
		o.Flags(f)
	}
	f.Parse(args)
	if f.NArg() > 0 {
		return fmt.Errorf("%q is too much; see kv -help", f.Args())
	}
	pid := 0
	if *kernel {
		device.Kernel = "any"
	} else {
		pid = daemon(device.Socket)
	}
	if serves {
		s.Device, s.Daemon = device, pid
		return s.Serve(ctx, os.Stdout)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o.Device, o.Start = device, []string{self, "serve", "--socket", device.Socket, fmt.Sprintf("--kernel=%t", *kernel)}
	return o.Run(ctx, os.Stdout, nil)
}

// daemon returns the pid of the daemon; 0: it belongs to another user, or there is none.
func daemon(socket string) int {
	if socket == "" {
		socket = os.Getenv("VRDMA_SOCKET")
	}
	st, err := protocol.QueryStatus(socket)
	if err != nil {
		return 0
	}
	return st.Pid
}
