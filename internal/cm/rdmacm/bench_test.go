package rdmacm

import (
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/state"
)

// processorTime returns the nanoseconds of processor time that the process has used; other load does not change it much.
func processorTime(b *testing.B) int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

// BenchmarkUpgrade freezes 1000 connections of 100 clients to bytes and thaws them: the rdma_cm part of a daemon's replacement.
func BenchmarkUpgrade(b *testing.B) {
	f := newFabric(b)
	var clients []*Client
	for range 50 {
		server, client := f.program(), f.program()
		l := server.listener(1, abi.PSTCP, "0.0.0.0:0", 0)
		for i := range uint32(20) {
			id := client.id(uint64(i+2), abi.PSTCP)
			to := l.Query().Src
			client.route(id, "10.0.0.1:"+to.String()[len("0.0.0.0:"):])
			client.must(id.Connect(param(uint32(len(clients)*100)+i+1, "hello"), ECE{}))
			at, err := server.ch.ID(server.next(abi.CMEventConnectRequest).ID)
			server.must(err)
			server.must(at.Accept(uint64(i+2), param(1<<20+uint32(len(clients)*100)+i, ""), ECE{}))
			client.next(abi.CMEventConnectResponse)
			client.must(id.Accept(0, &abi.CMConnParam{}, ECE{}))
			server.next(abi.CMEventEstablished)
		}
		clients = append(clients, server.c, client.c)
	}
	var size int
	used := processorTime(b)
	for b.Loop() {
		st := &savedHost{CMA: f.cma.Freeze()}
		for _, c := range clients {
			st.Clients = append(st.Clients, c.Freeze())
		}
		bytes, err := state.Marshal(st)
		if err != nil {
			b.Fatal(err)
		}
		size = len(bytes)
		read := new(savedHost)
		if err := state.Unmarshal(bytes, read); err != nil {
			b.Fatal(err)
		}
		a := New(f.cma.nic, f)
		if err := a.Thaw(read.CMA); err != nil {
			b.Fatal(err)
		}
		for _, c := range read.Clients {
			if _, err := a.ThawClient(c, &fresh{}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(size), "state-bytes")
	b.ReportMetric(float64(processorTime(b)-used)/float64(b.N), "cpu-ns/op")
}
