package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"syscall"

	"vrdma.dev/vrdma/verbs"
)

// This example writes from the memory of one queue pair to that of another, in one program.
func Example() {
	ctx := context.Background()
	dev, err := verbs.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	cq, err := dev.CreateCQ(16)
	if err != nil {
		log.Fatal(err)
	}
	mr, err := pd.Alloc(8192, verbs.RemoteAll)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	var qp [2]*verbs.QP
	var at [2]verbs.Address
	for i := range qp {
		if qp[i], err = pd.CreateQP(verbs.QPConfig{SendCQ: cq}); err != nil {
			log.Fatal(err)
		}
		if at[i], err = qp[i].Address(); err != nil {
			log.Fatal(err)
		}
	}
	for i := range qp { // each gets the other's address; programs apart exchange it as text
		if err := qp[i].Connect(at[1-i]); err != nil {
			log.Fatal(err)
		}
	}
	copy(mr.Bytes(), "written by RDMA")
	wr := verbs.SendWR{
		Op: verbs.Write, Flags: verbs.Signaled, SGL: []verbs.SGE{mr.Slice(0, 15)}, RemoteAddr: mr.Addr(4096), RKey: mr.RKey(),
	}
	if err := qp[0].PostSend(&wr); err != nil {
		log.Fatal(err)
	}
	var wc [1]verbs.WC
	if _, err := cq.Next(ctx, wc[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Println(wc[0].Status, "-", string(mr.Bytes()[4096:4096+15]))
	// Output: success - written by RDMA
}

// An error contains the operation, the reason and the advice; errors.Is finds the reason.
func ExampleError() {
	_, err := verbs.Options{Socket: "/run/nowhere/vrdma.sock"}.Open(context.Background())
	fmt.Println(errors.Is(err, syscall.ENOENT))
	if e, ok := errors.AsType[*verbs.Error](err); ok {
		fmt.Println(e.Op)
	}
	// Output:
	// true
	// open the device
}

// Programs read memory that peers change with sync/atomic: a counter, or a flag that is polled.
func ExampleMR_Uint64() {
	ctx := context.Background()
	dev, err := verbs.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	mr, err := pd.Alloc(4096, verbs.RemoteAll)
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	mr.Uint64(8).Store(42)
	fmt.Println(mr.Uint64(8).Load(), mr.Bytes()[8])
	// Output: 42 42
}
