package verbs_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"vrdma/internal/testdaemon"
	"vrdma/verbs"
)

// exampleSocket is where examples find a daemon.
var exampleSocket string

// TestExamples runs the examples, which need a daemon.
func TestExamples(t *testing.T) {
	exampleSocket = testdaemon.Start(t)
	Example()
}

// Two queue pairs of one program, a write from one's memory to the other's.
func Example() {
	if exampleSocket == "" {
		return // it is run by TestExamples
	}
	ctx := context.Background()
	dev, err := verbs.Options{Socket: exampleSocket}.Open(ctx)
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
	for i := range qp {
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
	fmt.Println(wc[0].Status == verbs.Success, string(mr.Bytes()[4096:4096+15]))
}
